"""Quantized matrices: a group of neighbouring inputs of one output shares a scale, and each weight is a small integer.

All of the formats that are read (MLX's, GPTQ's, AWQ's) and made here are one: `scale * (level - zero)` or
`scale * level + bias`, with levels from 0 on. They differ in how the integers are packed, which is undone here.
"""

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Zero = Literal["middle", "level", "bias"]
"""What is taken for a weight of level 0: the middle of the levels, a level of each group, or a bias of each group."""
ScaleType = Literal["float16", "bfloat16", "float32"]

SCALE_TYPES: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where AutoAWQ's GEMM format keeps each of eight neighbouring outputs in a word."""


@dataclass(frozen=True, slots=True)
class GroupFormat:
    """How the weights of a matrix are told from its levels."""

    bits: int
    """Of a level."""
    group: int
    """Inputs that share a scale."""
    zero: Zero
    scales: ScaleType
    """The type of scales and biases."""

    @property
    def middle(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def bits_per_weight(self) -> float:
        """Scales and zeros included."""
        return self.bits + 8 * self.entries * self.scale_size / self.group

    @property
    def scale_size(self) -> int:
        """Bytes of one number of the scales' type."""
        return int(np.dtype(SCALE_TYPES[self.scales]).itemsize)

    @property
    def entries(self) -> int:
        """Numbers of the scales' type that a group has."""
        return 1 if self.zero == "middle" else 2


@dataclass(frozen=True, slots=True)
class Quantized:
    """One matrix of `outputs` rows and `inputs` columns."""

    format: GroupFormat
    levels: NDArray[np.uint8]
    """[outputs, inputs], each below 2^bits."""
    scales: NDArray[Any]
    """[outputs, inputs / group]."""
    zeros: NDArray[Any] | None
    """Of the scales' shape and type: levels or biases; None where the format's zero is the middle."""

    def __post_init__(self) -> None:
        outputs, inputs = self.levels.shape
        expected = (outputs, inputs // self.format.group)
        shapes = [each.shape for each in (self.scales, self.zeros) if each is not None]
        if inputs % self.format.group or any(shape != expected for shape in shapes):
            raise ValueError(f"scales and zeros of {shapes} do not fit {self.levels.shape} weights")

    def dequantize(self) -> NDArray[np.float32]:
        """The weights, float32 [outputs, inputs]."""
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
    """The nearest levels for weights [outputs, inputs]; `inputs` must be a multiple of the group.

    With the zero in the middle the largest weight of a group lies on the last level that both signs have; with a
    bias the smallest and the largest weight lie on the first and the last level. Scales are rounded to their type
    first, so that levels make up for it.
    """
    outputs, inputs = weights.shape
    groups = weights.astype(np.float32).reshape(outputs, -1, format.group)
    kind = SCALE_TYPES[format.scales]
    last = 2 * format.middle - 1
    if format.zero == "middle":
        bias = None
        scales = (np.abs(groups).max(-1) / np.float32(format.middle - 1)).astype(kind)
        start = np.float32(-format.middle) * scales.astype(np.float32)
    elif format.zero == "bias":
        low, high = groups.min(-1), groups.max(-1)
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


def unpack_words(words: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Integers of `bits` bits, one after the other from the lowest bit of the first word on: [..., words] of 32 bits
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
    """MLX's affine mode: words [outputs, inputs * bits / 32], scales and biases [outputs, groups]."""
    return Quantized(format, unpack_words(words, format.bits), scales, biases)


def from_gptq(
    words: NDArray[Any], scales: NDArray[Any], zeros: NDArray[Any], format: GroupFormat, *, zero_offset: int
) -> Quantized:
    """AutoGPTQ's: words [inputs * bits / 32, outputs] packed along the inputs, scales [groups, outputs], zeros
    [groups, outputs * bits / 32]. `zero_offset` is what its first version took off the zeros, 1, or 0.
    """
    levels = unpack_words(words.T, format.bits)
    level = unpack_words(zeros, format.bits).T.astype(np.int32) + zero_offset
    return _with_zeros(format, levels, scales, level)


def from_awq(words: NDArray[Any], scales: NDArray[Any], zeros: NDArray[Any], format: GroupFormat) -> Quantized:
    """AutoAWQ's GEMM format: words [inputs, outputs * bits / 32], scales [groups, outputs], zeros
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
    """Levels with zeros that are levels. Raises ValueError where the format says that all are in the middle."""
    scales = np.ascontiguousarray(scales.T)
    if format.zero == "middle":
        if (zeros != format.middle).any():
            raise ValueError(f"the zeros are not all {format.middle}, as symmetric quantization has them")
        return Quantized(format, levels, scales, None)
    return Quantized(format, levels, scales, zeros.astype(scales.dtype))
