"""Keys and values as levels of 8 or 4 bits with a scale for each row of a head, which lies behind them as four int8."""

import mlx.core as mx

from workers.precision import MIN_TOP, SCALE_BYTES, max_level


def quantize_rows(rows: mx.array, bits: int) -> mx.array:
    """Quantize the last axis of rows, each by itself: int8 [..., width * bits / 8 + 4].

    The largest magnitude becomes the largest level or its negative, and ties go to the even level. Of 4 bits, a lane of
    the first half and one of the second share a byte. Of a row with a NaN or an infinity the scale is NaN, and so is
    every result.
    """
    values, most = rows.astype(mx.float32), max_level(bits)
    top = mx.maximum(mx.abs(values).max(axis=-1, keepdims=True), MIN_TOP)
    finite = mx.isfinite(values).all(axis=-1, keepdims=True)
    levels = mx.where(finite, mx.round(values * (most / top)), 0).astype(mx.int8)
    if bits == 4:
        low, high = mx.split(levels, 2, axis=-1)
        levels = (low & 15) | (high << 4)
    scales = mx.where(finite, top / most, mx.nan)
    return mx.concatenate([levels, scales.view(mx.int8)], axis=-1)


def dequantize_rows(stored: mx.array, bits: int, dtype: mx.Dtype) -> mx.array:
    """Return the numbers that `quantize_rows` stored."""
    levels, scales = stored[..., :-SCALE_BYTES], mx.contiguous(stored[..., -SCALE_BYTES:]).view(mx.float32)
    if bits == 4:
        levels = mx.concatenate([(levels << 4) >> 4, levels >> 4], axis=-1)
    return (levels.astype(mx.float32) * scales).astype(dtype)
