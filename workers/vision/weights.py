"""The parameters of a vision tower, read from a checkpoint on access."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.json_files import CheckpointError
from workers.vision.config import VisionConfig
from workers.vision.families.family import Sources
from workers.vision.parameters import Shape, parameter_shapes


class VisionWeights(Mapping[str, NDArray[Any]]):
    """A tower's parameters by canonical names (`workers.vision.config`), in the types of the checkpoint: float32,
    float16 or bfloat16; quantized ones are dequantized. Each access reads the file."""

    def __init__(self, path: Path, config: VisionConfig, sources: Sources, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Raises `CheckpointError` for files that cannot be read, and for a tensor that is missing."""
        self.shapes: Mapping[str, Shape] = parameter_shapes(config)
        self._path = path
        self._sources = sources
        self._tensors = tensors
        for name in self.shapes:
            for tensor in self._sources[name].tensors:
                if tensor not in self._tensors:
                    raise CheckpointError(path, tensor, "the tensor is missing, which images need")

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self.shapes:
            raise KeyError(name)
        source = self._sources[name]
        found = [self._tensors[tensor] for tensor in source.tensors]
        try:
            parameter = found[0] if source.change is None else source.change(*found)
        except ValueError as error:  # of numpy, for a tensor of a shape that cannot be permuted
            problem = f"has the shape {found[0].shape}, of which no {name} is made: {error}"
            raise CheckpointError(self._path, source.tensors[0], problem) from error
        if parameter.shape != self.shapes[name]:
            problem = f"has the shape {found[0].shape}, the description says {self.shapes[name]} for {name}"
            raise CheckpointError(self._path, source.tensors[0], problem)
        return np.ascontiguousarray(parameter)

    def stored(self, name: str) -> tuple[str, ...]:
        """Return the tensors of which a parameter is made, within the tower; empty for what the checkpoint lacks."""
        return self._sources[name].tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)
