"""Maxima, sums and look-ups over blocks of the vocabulary, in forms that compile to fast code, for any namespace `xp`.

Sums are of integers and exact, in limbs of 16 bits if they can exceed 32 bits, so their order does not matter.
"""

import math
from typing import Any

from workers.sampling.noise import Array

BLOCK = 128
"""Lanes in a block: 128 weights of at most 2**24 sum to less than 2**32."""
LOW = 0xFFFF
"""Mask of the lower 16-bit limb."""


def blocks_of(xp: Any, logits: Array) -> Array:
    """Reshape [B, V] to [B, n, BLOCK], padded with -inf."""
    return fold(xp, logits, BLOCK, -math.inf)


def fold(xp: Any, values: Array, width: int, filler: float) -> Array:
    """Reshape [B, m] to [B, n, width], padded with `filler`."""
    rows, length = values.shape
    missing = -length % width
    if missing:
        values = xp.pad(values, ((0, 0), (0, missing)), constant_values=filler)
    return values.reshape(rows, (length + missing) // width, width)


def best_of(xp: Any, blocks: Array) -> tuple[Array, Array]:
    """Return the maxima of blocks [B, n] and of rows [B]. NaN counts as +inf, as not every maximum propagates it."""
    maxima = xp.max(xp.where(blocks == blocks, blocks, math.inf), axis=2)
    return maxima, xp.max(maxima, axis=1)


def first(xp: Any, found: Array) -> Array:
    """Return the index of the first True in each row, or the last index: bool [B, m] -> int32 [B].

    Unsigned, as IREE begins minima and maxima of signed integers on a GPU with the unsigned neutral element: -1 or 0.
    """
    size = found.shape[1]
    indices = xp.arange(size, dtype=xp.uint32)[None, :]
    return xp.min(xp.where(found, indices, size - 1), axis=1).astype(xp.int32)


def take(xp: Any, blocks: Array, index: Array) -> Array:
    """Return blocks[b, index[b]] for each row b: [B, n, m] and [B] -> [B, m]."""
    return xp.take_along_axis(blocks, index[:, None, None], axis=1)[:, 0]


def sum_of(xp: Any, values: Array, axis: int) -> Array:
    """Sum uint32 values as uint32, in which the sums here fit (numpy would widen them)."""
    return xp.sum(values, axis=axis).astype(xp.uint32)


def limbs(xp: Any, values: Array, axis: int) -> tuple[Array, Array]:
    """Return the exact sum of uint32 along an axis as (high, low): high * 2**16 + low, with low below 2**16."""
    low = sum_of(xp, values & LOW, axis)
    return sum_of(xp, values >> 16, axis) + (low >> 16), low & LOW
