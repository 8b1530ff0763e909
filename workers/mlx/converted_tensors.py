"""Tensors that are converted when they are read (GGUF, FP8, FP4, ...) as mlx-lm has them: quantized matrices in MLX's
affine mode, experts in stacks."""

import re
from collections.abc import Callable, Iterator, Mapping

import ml_dtypes
import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.quantized_matrix import Quantized
from workers.checkpoints.weights import Weights

_EXPERT = re.compile(r"(.+)\.experts\.(\d+)\.(\w+)")
_STACKED: Mapping[str, str] = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
"""mlx-lm's names of Mixtral's matrices."""
Groups = Mapping[str, tuple[int, int]]
"""(group size, bits) of quantized modules."""


def read_converted(
    weights: Weights, unread: Callable[[str], bool], container: str = "switch_mlp"
) -> tuple[dict[str, mx.array], Groups]:
    """Read all tensors but those that are `unread`, one after the other, and the groups of the quantized modules.
    `container` is mlx-lm's name of the module with the experts of a layer."""
    tensors: dict[str, mx.array] = {}
    groups: dict[str, tuple[int, int]] = {}
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
            groups[module] = (format.group, format.bits)
            found = dict(_affine(weights.take_quantized(name, weights.shape(name))))
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


def pack_words(levels: NDArray[np.uint8], bits: int) -> NDArray[np.uint32]:
    """Pack levels [outputs, inputs] from the lowest bit of the first word on; the inverse of `unpack_words`."""
    levels = np.ascontiguousarray(levels)
    if bits == 4:
        levels = levels[:, ::2] | levels[:, 1::2] << np.uint8(4)
    elif bits != 8:
        stream = levels[:, :, None] >> np.arange(bits, dtype=np.uint8) & np.uint8(1)
        levels = np.packbits(stream.reshape(len(levels), -1), axis=1, bitorder="little")
    return np.ascontiguousarray(levels).view(np.uint32)
