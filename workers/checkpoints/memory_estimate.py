"""Estimates the memory of a model from its files, before it is loaded."""

import math
from pathlib import Path

from workers.checkpoints.checkpoint import ModelConfig, open_weights
from workers.precision import Dtype, Quantize

GROUP = 32
"""Weights of a quantized matrix that share a scale, at least."""
SCALE_BYTES = 4
BITS = {"int8": 8, "int4": 4}


def estimate_bytes(path: Path, *, dtype: Dtype, quantize: Quantize, slots: int, context: int, kv_bytes: int) -> int:
    """Return the bytes of the weights and of a full KV cache. They are rather too many than too few: `dtype` "auto" is
    taken for 16 bits, since no device needs more for such a model than for one of that type.

    Raises `CheckpointError`.
    """
    config = ModelConfig.from_dir(path)
    itemsize = 4 if dtype == "float32" or (dtype == "auto" and config.dtype == "float32") else 2
    row_bytes = 2 * config.layers * config.kv_heads * config.head_dim * itemsize
    full = row_bytes * slots * config.choose_context(context)
    return _weight_bytes(path, itemsize, quantize) + (min(kv_bytes, full) if kv_bytes else full)


def _weight_bytes(path: Path, itemsize: int, quantize: Quantize) -> int:
    weights, total = open_weights(path), 0.0
    for name in weights:
        own, shape = weights.format(name), weights.shape(name)
        bits, group = (own.bits, own.group) if own is not None else (BITS.get(quantize), GROUP)
        if bits is None or len(shape) != 2:
            total += math.prod(shape) * itemsize
        else:
            total += math.prod(shape) * (bits / 8 + 2 * SCALE_BYTES / group)
    return int(total)
