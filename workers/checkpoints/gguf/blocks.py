"""Values of tensors in GGUF files: plain, or as the levels and scales that their blocks have.

Layouts of blocks: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h. Types without an exact form here are
dequantized by `gguf.quants`, llama.cpp's own.
"""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.gguf.tensor_types import EVEN, GROUP, TensorType
from workers.checkpoints.low_bits.codes import from_e8m0
from workers.checkpoints.low_bits.fp4_layouts import LEVELS
from workers.checkpoints.quantized_matrix import SCALE_TYPES, GroupFormat, Quantized, quantize

PLAIN = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}
"""The types of plain numbers."""
Blocks = NDArray[np.uint8]
ROWS_AT_ONCE = 1 << 18
"""Weights that are dequantized at once, about."""


def plain_values(blocks: Blocks, kind: TensorType, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return numbers as they are stored, and quantized ones in float32."""
    if kind.name in PLAIN:
        numbers: NDArray[Any] = blocks.reshape(-1).view(PLAIN[kind.name]).reshape(shape)
        return numbers
    out = np.empty(len(blocks) * kind.block, np.float32)
    step = max(1, ROWS_AT_ONCE // kind.block)
    for at in range(0, len(blocks), step):
        part = _dequantize(blocks[at : at + step], kind)
        out[at * kind.block : at * kind.block + len(part)] = part
    return out.reshape(shape)


def quantized_matrix(blocks: Blocks, kind: TensorType, shape: tuple[int, int], format: GroupFormat) -> Quantized:
    """Return a matrix in the format of its type, or in `EVEN`, which holds all of them."""
    outputs, inputs = shape
    if not kind.exact:
        step = max(1, ROWS_AT_ONCE // inputs)
        per_row = inputs // kind.block
        parts = [
            quantize(_dequantize(blocks[at * per_row : (at + step) * per_row], kind).reshape(-1, inputs), format)
            for at in range(0, outputs, step)
        ]
        levels = np.concatenate([part.levels for part in parts])
        zeros = [part.zeros for part in parts if part.zeros is not None]
        return Quantized(format, levels, np.concatenate([part.scales for part in parts]), np.concatenate(zeros))
    levels, scales, bias = UNPACK[kind.name](blocks)
    own = kind.format
    assert own is not None  # an exact type has a format
    zeros_of = bias
    if format == EVEN and bias is None:
        zeros_of = -own.middle * scales.astype(np.float32)
    type_ = SCALE_TYPES[format.scales]
    groups = (outputs, inputs // GROUP)
    return Quantized(
        format,
        levels.reshape(shape),
        scales.reshape(groups).astype(type_, copy=False),
        None if zeros_of is None else zeros_of.reshape(groups).astype(type_, copy=False),
    )


def _dequantize(blocks: Blocks, kind: TensorType) -> NDArray[np.float32]:
    import gguf  # slow to import, and only needed for these types

    values: NDArray[np.float32] = gguf.dequantize(blocks, gguf.GGMLQuantizationType[kind.name])
    return values.reshape(-1)


Parts = tuple[NDArray[np.uint8], NDArray[Any], NDArray[Any] | None]
"""Levels [blocks, weights], scales [blocks, groups], and biases where a type has them."""


def _half(blocks: Blocks, at: int) -> NDArray[Any]:
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2")


def _nibbles(packed: Blocks) -> NDArray[np.uint8]:
    """Low halves first, then high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _fifth_bits(packed: Blocks) -> NDArray[np.uint8]:
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def _q8_0(blocks: Blocks) -> Parts:
    return blocks[:, 2:] + np.uint8(128), _half(blocks, 0), None  # -128 is level 0


def _q4_0(blocks: Blocks) -> Parts:
    return _nibbles(blocks[:, 2:]), _half(blocks, 0), None


def _q4_1(blocks: Blocks) -> Parts:
    return _nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: Blocks) -> Parts:
    return _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6]), _half(blocks, 0), None


def _q5_1(blocks: Blocks) -> Parts:
    return _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8]), _half(blocks, 0), _half(blocks, 2)


def _super_scales(blocks: Blocks) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Scales and biases of the eight groups of a block of Q4_K or Q5_K: products of a half and six bits, which float32
    holds exactly."""
    packed = blocks[:, 4:16].reshape(-1, 3, 4)
    low, middle, high = packed[:, 0], packed[:, 1], packed[:, 2]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6) << 4], axis=1)
    mins = np.concatenate([middle & 63, high >> 4 | (middle >> 6) << 4], axis=1)
    return (
        _half(blocks, 0).astype(np.float32) * scales,
        -_half(blocks, 2).astype(np.float32) * mins,
    )


def _pairs(packed: Blocks) -> NDArray[np.uint8]:
    """[blocks, 128] -> [blocks, 256]: of each 32 bytes the low halves are a group, and the high ones the next."""
    runs = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([runs & 15, runs >> 4], axis=2).reshape(len(packed), -1)


def _q4_k(blocks: Blocks) -> Parts:
    return _pairs(blocks[:, 16:]), *_super_scales(blocks)


def _q5_k(blocks: Blocks) -> Parts:
    bits = blocks[:, 16:48].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8)[:, None] & np.uint8(1)
    return _pairs(blocks[:, 48:]) | (bits << np.uint8(4)).reshape(len(blocks), -1), *_super_scales(blocks)


def _mxfp4(blocks: Blocks) -> Parts:
    """A power of two (E8M0) and the codes of FP4."""
    return LEVELS[_nibbles(blocks[:, 1:])], from_e8m0(blocks[:, :1]) / np.float32(2), None


UNPACK = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "MXFP4": _mxfp4,
}
