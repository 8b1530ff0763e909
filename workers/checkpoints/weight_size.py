"""Estimates the memory of a checkpoint's weights from the headers of its files, and that of keys and values."""

import math

from workers.checkpoints.architectures.config import ModelConfig
from workers.checkpoints.architectures.parts import QWEN_MTP
from workers.checkpoints.architectures.tensors import MTP_LAYERS
from workers.checkpoints.weights import Weights
from workers.precision import KvDtype, Quantize, WeightDtype, head_row_bytes

QUANTIZED_GROUP = 64
"""Group size of the matrices that `--quantize` makes; that of IREE may be smaller."""
LATENT_HEADS = ".self_attn.kv_b_proj.weight"
"""The matrices of all heads of latent attention, which are not quantized when they are loaded."""
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
        if name.startswith(QWEN_MTP.tensors) and not mtp:
            continue
        own, shape = weights.format(name), weights.shape(name)
        if name.endswith(LATENT_HEADS):
            total += math.prod(shape) * itemsize
            continue
        fits = len(shape) == 2 and shape[1] % QUANTIZED_GROUP == 0 and not name.endswith(".gate.weight")
        group, bits = (own.group, own.bits) if own else (QUANTIZED_GROUP, quantized_bits if fits else None)
        scale = 4 if own is not None and (own.zero != "bias" or own.scales != kind) else itemsize
        width = weights.mlx_bits(name) or (8 * itemsize if bits is None else bits + 16 * scale / group)
        total += math.prod(shape) * width / 8
    return int(total)


def kv_row_bytes(config: ModelConfig, item_bytes: int, kv_dtype: KvDtype) -> int:
    """Return the bytes of the keys and values of one token in the layers that keep all rows, where a number of the
    model has so many."""
    layers = (layer for layer in config.kv_owners if not config.in_ring(layer))
    return sum(sum(layer_row_bytes(config, layer, item_bytes, kv_dtype)) for layer in layers)


def layer_row_bytes(config: ModelConfig, layer: int, item_bytes: int, kv_dtype: KvDtype) -> tuple[int, int]:
    """Return the bytes of the keys and of the values of one token in a layer."""
    shape = config.kv_shape(layer)
    keys, values = (head_row_bytes(width, item_bytes, kv_dtype) for width in (shape.key_width, shape.value_width))
    return shape.heads * keys, shape.heads * values
