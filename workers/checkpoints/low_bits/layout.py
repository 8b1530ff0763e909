"""The layout of one kind of quantized matrix in a checkpoint: its tensors, shape, values and the served format."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.quantized_matrix import GroupFormat, Quantized, ScaleType, quantize

GROUPS = (64, 32)
"""Groups of int8 matrices that are made here: both backends have kernels for them."""
KERNEL_GROUPS = (128, 64, 32)
"""Groups that both backends have kernels for."""
ROWS_AT_ONCE = 1 << 20
"""Weights that are dequantized at once, about."""
SCALE_TYPES = ("F32", "BF16", "F16")
"""safetensors' names of the types of scales."""

Parts = Mapping[str, NDArray[Any]]
"""Tensors of a matrix by their endings; FP8 and E8M0 as bytes."""
Shape = tuple[int, int]
"""Outputs and inputs."""


class LowBitLayout(ABC):
    """One layout. A subclass states the endings of its tensors and their types, by safetensors' names."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in logs."""

    @property
    @abstractmethod
    def codes(self) -> str:
        """Ending of the tensor with the codes of the weights."""

    @property
    @abstractmethod
    def code_types(self) -> tuple[str, ...]:
        """Types of that tensor. One of another type under the same ending is a plain matrix."""

    @property
    @abstractmethod
    def required(self) -> Mapping[str, tuple[str, ...]]:
        """Types of the other tensors, by ending; that of the scales is first."""

    @property
    def optional(self) -> Mapping[str, tuple[str, ...]]:
        """Types of tensors that some checkpoints have, by ending."""
        return {}

    @property
    def stated(self) -> tuple[str, ...]:
        """Endings of the small tensors that `shape` reads."""
        return ()

    @property
    def stacked(self) -> bool:
        """Return True if the tensors are stacks of all experts."""
        return False

    @property
    def exact(self) -> bool:
        """Return True if the served format has the same weights as the checkpoint."""
        return False

    @abstractmethod
    def shape(self, codes: tuple[int, ...], parts: Parts) -> Shape:
        """Return the shape of a matrix from that of its codes, and from the small tensors that state it."""

    def format(self, shape: Shape, scales: ScaleType) -> GroupFormat | None:
        """Return the format in which a matrix is served; None to serve it in the model's type. Here int8, which takes
        about the memory of FP8 and twice that of four bits."""
        group = next((group for group in GROUPS if shape[1] % group == 0), None)
        return None if group is None else GroupFormat(8, group, "middle", "float32")

    @abstractmethod
    def values(self, parts: Parts, shape: Shape, low: int, high: int) -> NDArray[np.float32]:
        """Dequantize the outputs from `low` to `high`, [high - low, inputs]. Raises ValueError for tensors that do not
        fit together."""

    def quantized(self, parts: Parts, shape: Shape, format: GroupFormat) -> Quantized:
        """Return the matrix in the served format. Raises ValueError for tensors that do not fit together."""
        step = max(1, ROWS_AT_ONCE // shape[1])
        ends = [(low, min(low + step, shape[0])) for low in range(0, shape[0], step)]
        made = [quantize(self.values(parts, shape, low, high), format) for low, high in ends]
        levels = np.concatenate([each.levels for each in made])
        return Quantized(format, levels, np.concatenate([each.scales for each in made]), None)


def pair(codes: tuple[int, ...], per_item: float = 1) -> Shape:
    """Return the shape of a matrix whose codes are stored so many to an item. Raises ValueError for another rank."""
    if len(codes) != 2:
        raise ValueError(f"has the shape {codes}, not that of a matrix")
    return codes[0], int(codes[1] * per_item)


def fit(values: NDArray[Any], expected: tuple[int, ...], part: str) -> NDArray[Any]:
    """Return `values`. Raises ValueError with the name of the part unless they have this shape."""
    if values.shape != expected:
        raise ValueError(f"{part} has the shape {values.shape}, not {expected}")
    return values


def single(values: NDArray[Any], part: str) -> NDArray[Any]:
    """Return the only value, of the shape []. Raises ValueError unless it is one."""
    if values.size != 1:
        raise ValueError(f"{part} has the shape {values.shape}, not one value")
    return values.reshape(())
