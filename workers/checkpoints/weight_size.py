"""Estimates the memory of a checkpoint's weights from the headers of its files."""

import math

from workers.checkpoints.architectures.config import WeightDtype
from workers.checkpoints.architectures.tensors import MTP_LAYERS
from workers.checkpoints.weights import Weights
from workers.precision import Quantize

QUANTIZED_GROUP = 64
"""Group size of the matrices that `--quantize` makes; that of IREE may be smaller."""
ITEM_BYTES: dict[WeightDtype, int] = {"float32": 4, "float16": 2, "bfloat16": 2}


def weight_bytes(weights: Weights, kind: WeightDtype, quantize: Quantize, *, mtp: bool = False) -> int:
    """Return the bytes that the loaded weights take.

    A quantized matrix has integers, and a scale and a bias for each group, in float32 where `kind` would round them.
    Of the heads for multi-token prediction only the first one is loaded, with `mtp`. Raises `CheckpointError`.
    """
    itemsize = ITEM_BYTES[kind]
    quantized_bits = {"none": None, "int8": 8, "int4": 4}[quantize]
    total = 0.0
    for name in weights:
        if name.startswith(MTP_LAYERS) and not (mtp and name.startswith(f"{MTP_LAYERS}0.")):
            continue
        own, shape = weights.format(name), weights.shape(name)
        fits = len(shape) == 2 and shape[1] % QUANTIZED_GROUP == 0 and not name.endswith(".gate.weight")
        group, bits = (own.group, own.bits) if own else (QUANTIZED_GROUP, quantized_bits if fits else None)
        scale = 4 if own is not None and (own.zero != "bias" or own.scales != kind) else itemsize
        width = weights.mlx_bits(name) or (8 * itemsize if bits is None else bits + 16 * scale / group)
        total += math.prod(shape) * width / 8
    return int(total)
