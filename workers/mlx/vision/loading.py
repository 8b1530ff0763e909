"""Loads the vision tower of a checkpoint on MLX."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.checkpoint import CheckpointError
from workers.checkpoints.gguf.find import MMPROJ_AUTO
from workers.mlx.runtime.device import adds_in_order
from workers.mlx.vision.encoder import MlxPartSize, MlxTower
from workers.mlx.vision.tower import MlxVisionTower
from workers.precision import Dtype
from workers.vision.config import VisionConfig
from workers.vision.parameters import parameter_shapes
from workers.vision.positions import HOST, NEWLINE, added, angles
from workers.vision.tower import find_tower

GPU_PART = MlxPartSize(1024, 5e10)
CPU_PART = MlxPartSize(256, 1e10)
REFERENCE_BLAS_PART = MlxPartSize(32, 5e8)
"""On a CPU under Linux, whose wheel of MLX has the reference BLAS: about a tenth of a second. numpy would multiply 14
times as fast, but its bits depend on its threads, and those of an image must be the same in every worker."""


def tower_of(
    config: VisionConfig, parameters: Mapping[str, NDArray[Any]], dtype: Dtype, device: mx.Device, padding: int = 0
) -> MlxTower:
    """Make a tower of its parameters, by canonical names, with weights in `dtype`."""
    kind = getattr(mx, dtype)
    gpu = device.type != mx.cpu
    # MLX multiplies in float32 on a CPU, and float16 has too small a range for some towers.
    computed = kind if gpu and kind == mx.bfloat16 else mx.float32
    weights = {name: _weight(array, kind) for name, array in parameters.items() if name not in HOST}
    mx.eval(list(weights.values()))
    table = {name: np.asarray(array, np.float32) for name, array in parameters.items() if name in HOST}
    size = GPU_PART if gpu else REFERENCE_BLAS_PART if adds_in_order(device) else CPU_PART
    return MlxTower(
        MlxVisionTower(config, weights, computed),
        lambda image: added(config, table, image),
        lambda image: angles(config, image),
        size,
        padding,
        table.get(NEWLINE),
    )


def _weight(array: NDArray[Any], dtype: mx.Dtype) -> mx.array:
    """Matrices become [inputs, outputs]: see `workers.mlx.transposed`."""
    weight = mx.array(np.asarray(array, np.float32)).astype(dtype)
    return mx.contiguous(weight.T) if weight.ndim > 1 else weight


@dataclass(frozen=True, slots=True)
class UnreadTower:
    """The tower of a checkpoint whose weights are not read yet."""

    config: VisionConfig
    parameters: Mapping[str, NDArray[Any]]
    """By canonical names, read on access."""
    dtype: Dtype
    padding: int = 0
    """See `MlxTower.padding`."""

    @property
    def nbytes(self) -> int:
        """Bytes of the weights on the device."""
        sizes = (math.prod(shape) for name, shape in parameter_shapes(self.config).items() if name not in HOST)
        return sum(sizes) * int(getattr(mx, self.dtype).size)

    def load(self, device: mx.Device) -> MlxTower:
        """Read the weights."""
        return tower_of(self.config, self.parameters, self.dtype, device, self.padding)


def open_tower(path: Path, dtype: Dtype, mmproj: str = MMPROJ_AUTO) -> UnreadTower | None:
    """Open the vision tower of a checkpoint, whose weights will be in `dtype`; None for a checkpoint without one.
    `mmproj` as in `find_tower`.

    Raises `CheckpointError` for a tower with unsupported values or without some of its tensors.
    """
    tower = find_tower(path, mmproj)
    if tower is None:
        return None
    text = tower.fields.section("text_config")
    padding = 0 if text is None else text.get("pad_token_id") or 0
    if not isinstance(padding, int) or not padding >= 0:
        raise CheckpointError(tower.fields.file, "text_config.pad_token_id", f"{padding!r} is not a token")
    return UnreadTower(tower.config, tower.weights(), dtype, padding)
