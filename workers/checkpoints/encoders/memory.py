"""The memory of an encoder's weights, before it is loaded."""

import math

from workers.checkpoints.encoders.config import EncoderConfig
from workers.checkpoints.encoders.tensors import TABLES, encoder_tensors
from workers.checkpoints.memory_estimate import BITS, GROUP, PADDING, SCALE_BYTES
from workers.precision import Dtype, Quantize


def estimate_encoder(config: EncoderConfig, dtype: Dtype, quantize: Quantize) -> int:
    """Return the bytes of the loaded weights, rather too many than too few. Tables are not quantized."""
    kind = config.dtype if dtype == "auto" else dtype
    total = 0.0
    for tensor in encoder_tensors(config):
        count = sum(math.prod(shape) for _, shape in tensor.sources)
        item = 4.0 if kind == "float32" or not tensor.matrix else 2.0
        if quantize != "none" and tensor.matrix and tensor.name not in TABLES:
            item = BITS[quantize] / 8 + 2 * SCALE_BYTES / GROUP
        total += count * item
    return int(total * (1 + PADDING))
