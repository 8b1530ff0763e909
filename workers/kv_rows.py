"""The size of a row of the KV cache: the keys or values of one token and KV head."""

from workers.precision import KvDtype

SCALE_BYTES = 4
"""Bytes of the scale of a quantized row, float32."""
MAX_LEVEL = 127
"""The level of a quantized row's largest magnitude."""
MIN_TOP = 1e-30
"""The least that a row's largest magnitude counts as: a row of zeros has a scale, too."""


def head_row_bytes(lanes: int, item_bytes: int, kv_dtype: KvDtype) -> int:
    """Return the bytes of a row of `lanes` numbers, of `item_bytes` each where the cache has the model's type."""
    return lanes * item_bytes if kv_dtype == "auto" else lanes + SCALE_BYTES
