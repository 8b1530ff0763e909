"""The memory of a vision tower, before it is loaded."""

import math
from pathlib import Path

from workers.checkpoints.weight_size import ITEM_BYTES
from workers.precision import WeightDtype
from workers.process.spec import WorkerSpec
from workers.vision.parameters import parameter_shapes
from workers.vision.tower import find_tower


def vision_bytes(spec: WorkerSpec, kind: WeightDtype) -> int:
    """Return the bytes of the vision tower of a checkpoint whose weights have this type; 0 where none is loaded.

    It is not quantized: matrices have the type, and vectors are float32. Raises `CheckpointError`.
    """
    tower = find_tower(Path(spec.model_path), spec.mmproj) if spec.vision else None
    if tower is None:
        return 0
    shapes = parameter_shapes(tower.config).values()
    return sum(math.prod(shape) * (ITEM_BYTES[kind] if len(shape) == 2 else 4) for shape in shapes)
