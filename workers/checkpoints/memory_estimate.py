"""Estimates the memory of a model's weights from its files, before it is loaded."""

import math
from pathlib import Path

from workers.checkpoints.checkpoint import ModelConfig, open_weights
from workers.checkpoints.weight_size import LATENT_HEADS
from workers.precision import Dtype, Quantize

GROUP = 32
"""Weights of a quantized matrix that share a scale, at least."""
SCALE_BYTES = 4
BITS = {"int8": 8, "int4": 4}
EMBEDDING = "embed_tokens.weight"
PADDING = 1 / 64
"""Share of rows and columns that are added to matrices."""


def estimate_weights(path: Path, *, dtype: Dtype, quantize: Quantize) -> int:
    """Return the bytes of the loaded weights. They are rather too many than too few: `dtype` "auto" is taken for 16
    bits, since no device needs more for such a model than for one of that type.

    Raises `CheckpointError`.
    """
    config, weights, total = ModelConfig.from_dir(path), open_weights(path, quantize), 0.0
    itemsize = 4 if dtype == "float32" or (dtype == "auto" and config.dtype == "float32") else 2
    for name in weights:
        scales = 2 * SCALE_BYTES
        own, shape = weights.format(name), weights.shape(name)
        bits, group = BITS.get(quantize), GROUP
        if own is not None:  # IREE stores 5 and 6 bits in 8, and fewer in 4
            bits, group = 4 if own.bits <= 4 else 8, own.group
            scales = own.entries * own.scale_size if own.e2m1 else scales
        if bits is None or len(shape) != 2 or name.endswith(LATENT_HEADS):
            # A tied head that is not quantized is stored again, in the order in which it is multiplied.
            copies = 2 if config.tie_embeddings and name.endswith(EMBEDDING) else 1
            total += copies * math.prod(shape) * itemsize
        else:
            total += math.prod(shape) * (bits / 8 + scales / group)
    return int(total * (1 + PADDING))
