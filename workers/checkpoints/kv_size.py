"""Sizes of the keys and values of a model."""

from workers.checkpoints.architectures.config import ModelConfig
from workers.precision import KvDtype, head_row_bytes


def kv_row_bytes(config: ModelConfig, item_bytes: int, kv_dtype: KvDtype) -> int:
    """Return the bytes of the keys and values of one token in all layers, where a number of the model has so many."""
    return sum(sum(layer_row_bytes(config, layer, item_bytes, kv_dtype)) for layer in config.kv_owners)


def layer_row_bytes(config: ModelConfig, layer: int, item_bytes: int, kv_dtype: KvDtype) -> tuple[int, int]:
    """Return the bytes of the keys and of the values of one token in a layer."""
    shape = config.kv_shape(layer)
    keys, values = (head_row_bytes(width, item_bytes, kv_dtype) for width in (shape.key_width, shape.value_width))
    return shape.heads * keys, shape.heads * values
