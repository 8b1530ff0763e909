"""Quantized matrices: each weight is a level, an integer from 0 on, and a group of inputs of one output shares a scale.

All formats that are read here (MLX's, GPTQ's, AWQ's) or made here compute a weight as `scale * (level - zero)` or
`scale * level + bias`. They differ in the packing of the levels, which is undone here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Zero = Literal["middle", "level", "bias"]
"""The zero point: the middle of the levels, a level per group, or a bias per group (the weight of level 0)."""
ScaleType = Literal["float16", "bfloat16", "float32"]

SCALE_TYPES: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
FP4_MIDDLE = 12
"""The level of zero in matrices of FP4, whose doubled values are -12 to 12."""
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Positions of eight neighbouring outputs in a word of AutoAWQ's GEMM format."""


@dataclass(frozen=True, slots=True)
class GroupFormat:
    """The format of a quantized matrix."""

    bits: int
    """Bits of a level."""
    group: int
    """Inputs that share a scale."""
    zero: Zero
    scales: ScaleType
    """The type of scales and biases."""
    e2m1: bool = False
    """Levels are those of FP4 (E2M1): twice its values, plus `FP4_MIDDLE`. They take 4 bits, with the zero in the
    middle."""

    @property
    def middle(self) -> int:
        return FP4_MIDDLE if self.e2m1 else 1 << (self.bits - 1)

    @property
    def width(self) -> str:
        """The name of the width: `int4`, `int8` or `fp4`."""
        return "fp4" if self.e2m1 else f"int{self.bits}"

    @property
    def bits_per_weight(self) -> float:
        """Bits of a weight, scales and zeros included."""
        return self.bits + 8 * self.entries * self.scale_size / self.group

    @property
    def scale_size(self) -> int:
        """Bytes of one number of the type of the scales."""
        return int(np.dtype(SCALE_TYPES[self.scales]).itemsize)

    @property
    def entries(self) -> int:
        """Numbers of the type of the scales in a group."""
        return 1 if self.zero == "middle" else 2


@dataclass(frozen=True, slots=True)
class Quantized:
    """One quantized matrix of `outputs` rows and `inputs` columns."""

    format: GroupFormat
    levels: NDArray[np.uint8]
    """Levels [outputs, inputs], each below 2^bits; of FP4 up to twice `FP4_MIDDLE`."""
    scales: NDArray[Any]
    """Scales [outputs, inputs / group]."""
    zeros: NDArray[Any] | None
    """Zeros or biases, with the shape and type of the scales; None where the format's zero is the middle."""

    def __post_init__(self) -> None:
        outputs, inputs = self.levels.shape
        expected = (outputs, inputs // self.format.group)
        shapes = [each.shape for each in (self.scales, self.zeros) if each is not None]
        if inputs % self.format.group or any(shape != expected for shape in shapes):
            raise ValueError(f"scales and zeros of {shapes} do not fit {self.levels.shape} weights")

    def reordered(self, rows: NDArray[np.intp]) -> "Quantized":
        """Return the matrix with its rows in another order."""
        zeros = None if self.zeros is None else self.zeros[rows]
        return Quantized(self.format, self.levels[rows], self.scales[rows], zeros)

    def dequantize(self) -> NDArray[np.float32]:
        """Compute the weights, float32 [outputs, inputs]."""
        outputs, inputs = self.levels.shape
        groups = self.levels.reshape(outputs, -1, self.format.group).astype(np.float32)
        scales = self.scales.astype(np.float32)[:, :, None]
        if self.format.zero == "bias":
            assert self.zeros is not None  # as the format says
            groups = groups * scales + self.zeros.astype(np.float32)[:, :, None]
        elif self.zeros is None:
            groups = (groups - np.float32(self.format.middle)) * scales
        else:
            groups = (groups - self.zeros.astype(np.float32)[:, :, None]) * scales
        return groups.reshape(outputs, inputs)


def quantize(weights: NDArray[Any], format: GroupFormat) -> Quantized:
    """Quantize weights [outputs, inputs] to the nearest levels; `inputs` must be a multiple of the group.

    With the zero in the middle, the largest magnitude of a group gets the last level that both signs have. With a bias,
    the smallest and the largest weight get the first and the last level. Scales are rounded to their type first, and
    levels are chosen for the rounded scale. Raises ValueError for FP4.
    """
    if format.e2m1:
        raise ValueError("FP4 is not made here")
    outputs, inputs = weights.shape
    groups = weights.astype(np.float32).reshape(outputs, -1, format.group)
    kind = SCALE_TYPES[format.scales]
    last = 2 * format.middle - 1
    if format.zero == "middle":
        bias = None
        scales = (_chosen(np.abs(groups), np.argmax) / np.float32(format.middle - 1)).astype(kind)
        start = np.float32(-format.middle) * scales.astype(np.float32)
    elif format.zero == "bias":
        low, high = _chosen(groups, np.argmin), _chosen(groups, np.argmax)
        bias = low.astype(kind)
        start = bias.astype(np.float32)
        scales = ((high - start) / np.float32(last)).astype(kind)
    else:
        raise ValueError(f"zero: {format.zero!r} is not made here")
    step = scales.astype(np.float32)
    inverse = np.divide(1, step, out=np.zeros_like(step), where=step > 0)[:, :, None]
    groups -= start[:, :, None]
    groups *= inverse
    levels = np.clip(np.rint(groups, out=groups), 0, last, out=groups).astype(np.uint8)
    return Quantized(format, levels.reshape(outputs, inputs), scales, bias)


def _chosen(groups: NDArray[np.float32], choose: Callable[..., NDArray[np.intp]]) -> NDArray[np.float32]:
    """Return the value that `choose` finds in each group: numpy has vector instructions for argmax, not for max."""
    return np.take_along_axis(groups, choose(groups, axis=-1)[:, :, None], axis=-1)[:, :, 0]


def unpack_words(words: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Unpack integers of `bits` bits, from the lowest bit of the first word on: [..., words] of 32 bits
    -> [..., words * 32 / bits]."""
    words = np.ascontiguousarray(words)
    if 32 % bits:  # some lie across two words
        stream = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")
        fields = stream.reshape(*words.shape[:-1], -1, bits) @ (1 << np.arange(bits)).astype(np.uint8)
    else:
        shifts = np.arange(0, 32, bits, dtype=np.uint32)
        fields = (words.view(np.uint32)[..., None] >> shifts) & np.uint32((1 << bits) - 1)
    return fields.astype(np.uint8).reshape(*words.shape[:-1], -1)


def from_mlx(words: NDArray[Any], scales: NDArray[Any], biases: NDArray[Any], format: GroupFormat) -> Quantized:
    """Read MLX's affine mode: words [outputs, inputs * bits / 32], scales and biases [outputs, groups]."""
    return Quantized(format, unpack_words(words, format.bits), scales, biases)


def from_gptq(
    words: NDArray[Any], scales: NDArray[Any], zeros: NDArray[Any], format: GroupFormat, *, zero_offset: int
) -> Quantized:
    """Read AutoGPTQ's format: words [inputs * bits / 32, outputs] packed along the inputs, scales [groups, outputs],
    zeros [groups, outputs * bits / 32].

    `zero_offset` was subtracted from the zeros: 1 in the first version of the format, else 0.
    """
    levels = unpack_words(words.T, format.bits)
    level = unpack_words(zeros, format.bits).T.astype(np.int32) + zero_offset
    return _with_zeros(format, levels, scales, level)


def from_awq(words: NDArray[Any], scales: NDArray[Any], zeros: NDArray[Any], format: GroupFormat) -> Quantized:
    """Read AutoAWQ's GEMM format: words [inputs, outputs * bits / 32], scales [groups, outputs], zeros
    [groups, outputs * bits / 32]; the eight outputs of a word are interleaved.
    """
    levels, level = (_interleaved(unpack_words(each, format.bits)) for each in (words, zeros))
    return _with_zeros(format, np.ascontiguousarray(levels.T), scales, level.T.astype(np.int32))


def _interleaved(fields: NDArray[np.uint8]) -> NDArray[np.uint8]:
    rows, columns = fields.shape
    return fields.reshape(rows, -1, len(AWQ_ORDER))[:, :, AWQ_ORDER].reshape(rows, columns)


def _with_zeros(
    format: GroupFormat, levels: NDArray[np.uint8], scales: NDArray[Any], zeros: NDArray[np.int32]
) -> Quantized:
    """Make a matrix whose zeros are levels. Raises ValueError for a symmetric format with a zero off the middle."""
    scales = np.ascontiguousarray(scales.T)
    if format.zero == "middle":
        if (zeros != format.middle).any():
            raise ValueError(f"the zeros are not all {format.middle}, as symmetric quantization has them")
        return Quantized(format, levels, scales, None)
    return Quantized(format, levels, scales, zeros.astype(scales.dtype))
