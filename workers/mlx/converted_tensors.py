"""Tensors that are converted when they are read (GGUF, FP8, FP4, ...) as mlx-lm has them: quantized matrices in MLX's
affine mode, experts in stacks."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.low_bits.codes import E2M1
from workers.checkpoints.low_bits.low_bit_weights import made_int8_by_mlx, mlx_int8
from workers.checkpoints.quantized_matrix import FP4_MIDDLE, GroupFormat, Quantized, quantize
from workers.checkpoints.weights import Weights

_EXPERT = re.compile(r"(.+)\.experts\.(\d+)\.(\w+)")
_STACKED: Mapping[str, str] = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
"""mlx-lm's names of Mixtral's matrices."""
Groups = Mapping[str, Mapping[str, Any]]
"""The quantization of modules: the options of mlx's `to_quantized`."""


def read_converted(
    weights: Weights, unread: Callable[[str], bool], container: str = "switch_mlp"
) -> tuple[dict[str, mx.array], Groups]:
    """Read all tensors but those that are `unread`, one after the other, and the groups of the quantized modules.
    `container` is mlx-lm's name of the module with the experts of a layer."""
    tensors: dict[str, mx.array] = {}
    groups: dict[str, Mapping[str, Any]] = {}
    stacks: dict[str, list[mx.array]] = {}
    for name in weights:
        if unread(name):
            continue
        module, _, part = name.rpartition(".")
        match = _EXPERT.fullmatch(module)
        if match is not None:
            module = f"{match[1]}.{container}.{_STACKED.get(match[3], match[3])}"
        format = weights.format(name)
        if format is not None:
            matrix = _in_kernel_groups(weights.take_quantized(name, weights.shape(name)))
            groups[module] = options_of(matrix.format)
            found = dict(_microscaled(matrix) if matrix.format.e2m1 else _affine(matrix))
        else:
            found = {part: _plain(weights[name])}
        for part, tensor in found.items():
            if match is None:
                tensors[f"{module}.{part}"] = tensor
            else:
                stacks.setdefault(f"{module}.{part}", []).append(tensor)  # in the order of the experts
    return tensors | {name: mx.stack(experts) for name, experts in stacks.items()}, groups


def _plain(values: NDArray[np.generic]) -> mx.array:
    if values.dtype == ml_dtypes.bfloat16:
        return mx.array(np.ascontiguousarray(values).view(np.uint16)).view(mx.bfloat16)
    return mx.array(values)


def _affine(matrix: Quantized) -> Iterator[tuple[str, mx.array]]:
    """Yield the parts of a matrix whose weights are `scale * level + bias`."""
    scales, zeros = matrix.scales, matrix.zeros
    if zeros is None:  # exact: the middle is a power of two
        zeros = -scales * scales.dtype.type(matrix.format.middle)
    elif matrix.format.zero == "level":  # exact in float32: a scale of 16 bits and a level of 8
        scales = scales.astype(np.float32)
        zeros = -zeros.astype(np.float32) * scales
    yield "weight", mx.array(pack_words(matrix.levels, matrix.format.bits))
    yield "scales", _plain(scales)
    yield "biases", _plain(zeros)


def options_of(format: GroupFormat) -> Mapping[str, Any]:
    """Return mlx's options of a format."""
    options = {"group_size": format.group, "bits": format.bits}
    return options | {"mode": "mxfp4"} if format.e2m1 else options


def _in_kernel_groups(matrix: Quantized) -> Quantized:
    """Return the matrix, or its nearest of 8 bits where MLX has no product for it."""
    if not made_int8_by_mlx(matrix.format):
        return matrix
    return quantize(matrix.dequantize(), mlx_int8(matrix.levels.shape[1]))


def _microscaled(matrix: Quantized) -> Iterator[tuple[str, mx.array]]:
    """Yield the parts of a matrix of MXFP4: codes, and scales as the exponents of powers of two (E8M0)."""
    levels = matrix.levels.astype(np.int8) - np.int8(FP4_MIDDLE)
    magnitudes = np.searchsorted(2 * E2M1[:8], np.abs(levels)).astype(np.uint8)
    codes = magnitudes | np.where(levels < 0, np.uint8(8), np.uint8(0))
    yield "weight", mx.array(pack_words(codes, matrix.format.bits))
    # A scale is half of the stored power of two, 0.5 * 2^exponent.
    exponents = np.frexp(2 * matrix.scales.astype(np.float32))[1] - 1
    yield "scales", mx.array((exponents + 127).astype(np.uint8))


def pack_words(levels: NDArray[np.uint8], bits: int) -> NDArray[np.uint32]:
    """Pack levels [outputs, inputs] from the lowest bit of the first word on; the inverse of `unpack_words`."""
    levels = np.ascontiguousarray(levels)
    if bits == 4:
        levels = levels[:, ::2] | levels[:, 1::2] << np.uint8(4)
    elif bits != 8:
        stream = levels[:, :, None] >> np.arange(bits, dtype=np.uint8) & np.uint8(1)
        levels = np.packbits(stream.reshape(len(levels), -1), axis=1, bitorder="little")
    return np.ascontiguousarray(levels).view(np.uint32)
