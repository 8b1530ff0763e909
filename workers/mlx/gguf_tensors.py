"""The tensors of a GGUF file as mlx-lm has them: quantized matrices in MLX's affine mode, experts in stacks."""

import re
from collections.abc import Iterator, Mapping

import ml_dtypes
import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.gguf.gguf_weights import GgufWeights
from workers.checkpoints.quantized_matrix import Quantized

_EXPERT = re.compile(r"(.+)\.experts\.(\d+)\.(\w+)")
_STACKED: Mapping[str, str] = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
"""mlx-lm's names of Mixtral's matrices."""
Groups = Mapping[str, tuple[int, int]]
"""(group size, bits) of quantized modules."""


def read_gguf(weights: GgufWeights) -> tuple[dict[str, mx.array], Groups]:
    """Read all tensors, one after the other, and the groups of the modules that are quantized."""
    tensors: dict[str, mx.array] = {}
    groups: dict[str, tuple[int, int]] = {}
    stacks: dict[str, list[dict[str, mx.array]]] = {}
    for name in weights:
        module, _, part = name.rpartition(".")
        match = _EXPERT.fullmatch(module)
        if match is not None:
            module = f"{match[1]}.switch_mlp.{_STACKED.get(match[3], match[3])}"
        format = weights.format(name)
        if format is not None:
            groups[module] = (format.group, format.bits)
            found = dict(_affine(weights.take_quantized(name, weights.shape(name))))
        else:
            found = {part: _plain(weights[name])}
        if match is None:
            tensors |= {f"{module}.{part}": tensor for part, tensor in found.items()}
        else:
            stacks.setdefault(module, []).append(found)  # in the order of the experts
    for module, experts in stacks.items():
        tensors |= {f"{module}.{part}": mx.stack([each[part] for each in experts]) for part in experts[0]}
    return tensors, groups


def _plain(values: NDArray[np.generic]) -> mx.array:
    if values.dtype == ml_dtypes.bfloat16:
        return mx.array(np.ascontiguousarray(values).view(np.uint16)).view(mx.bfloat16)
    return mx.array(values)


def _affine(matrix: Quantized) -> Iterator[tuple[str, mx.array]]:
    """Yield the parts of a matrix whose weights are `scale * level + bias`."""
    zeros = matrix.zeros
    if zeros is None:  # exact: the middle is a power of two
        zeros = -matrix.scales * matrix.scales.dtype.type(matrix.format.middle)
    yield "weight", mx.array(pack_words(matrix.levels, matrix.format.bits))
    yield "scales", mx.array(matrix.scales)
    yield "biases", mx.array(zeros)


def pack_words(levels: NDArray[np.uint8], bits: int) -> NDArray[np.uint32]:
    """Pack levels [outputs, inputs] from the lowest bit of the first word on; the inverse of `unpack_words`."""
    levels = np.ascontiguousarray(levels)
    if bits == 4:
        levels = levels[:, ::2] | levels[:, 1::2] << np.uint8(4)
    elif bits != 8:
        stream = levels[:, :, None] >> np.arange(bits, dtype=np.uint8) & np.uint8(1)
        levels = np.packbits(stream.reshape(len(levels), -1), axis=1, bitorder="little")
    return np.ascontiguousarray(levels).view(np.uint32)
