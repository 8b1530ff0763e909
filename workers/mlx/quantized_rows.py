"""Keys and values as int8 levels with a scale for each row of a head, which lies behind the levels as four of them."""

import mlx.core as mx

from workers.kv_rows import MAX_LEVEL, MIN_TOP, SCALE_BYTES


def quantize_rows(rows: mx.array) -> mx.array:
    """Quantize the last axis of rows, each by itself: int8 [..., width + 4].

    The largest magnitude becomes 127 or -127, and ties go to the even level. Of a row with a NaN or an infinity the
    scale is NaN, and so is every result.
    """
    values = rows.astype(mx.float32)
    top = mx.maximum(mx.abs(values).max(axis=-1, keepdims=True), MIN_TOP)
    finite = mx.isfinite(values).all(axis=-1, keepdims=True)
    levels = mx.where(finite, mx.round(values * (MAX_LEVEL / top)), 0).astype(mx.int8)
    scales = mx.where(finite, top / MAX_LEVEL, mx.nan)
    return mx.concatenate([levels, scales.view(mx.int8)], axis=-1)


def dequantize_rows(stored: mx.array, dtype: mx.Dtype) -> mx.array:
    """Return the numbers that `quantize_rows` stored."""
    levels, scales = stored[..., :-SCALE_BYTES], mx.contiguous(stored[..., -SCALE_BYTES:]).view(mx.float32)
    return (levels.astype(mx.float32) * scales).astype(dtype)
