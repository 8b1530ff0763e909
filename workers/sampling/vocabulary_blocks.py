"""A vocabulary in blocks: maxima, sums and look-ups that compilers make fast code of, for every array namespace `xp`.

Sums are of integers and exact, in limbs of 16 bits where they can pass 32: they have no order.
"""

import math
from typing import Any

from workers.sampling.noise import Array

BLOCK = 128
"""Lanes of a block: 128 weights of at most 2**24 sum to less than 2**32."""
LOW = 0xFFFF
"""The lower limb of 32 bits."""


def blocks_of(xp: Any, logits: Array) -> Array:
    """[B, V] -> [B, n, BLOCK], filled up with -inf."""
    return fold(xp, logits, BLOCK, -math.inf)


def fold(xp: Any, values: Array, width: int, filler: float) -> Array:
    """[B, m] -> [B, n, width], filled up."""
    rows, length = values.shape
    missing = -length % width
    if missing:
        values = xp.pad(values, ((0, 0), (0, missing)), constant_values=filler)
    return values.reshape(rows, (length + missing) // width, width)


def best_of(xp: Any, blocks: Array) -> tuple[Array, Array]:
    """The blocks' maxima [B, n] and the rows' [B]; a NaN counts as +inf, as not every maximum passes it on."""
    maxima = xp.max(xp.where(blocks == blocks, blocks, math.inf), axis=2)
    return maxima, xp.max(maxima, axis=1)


def first(xp: Any, found: Array) -> Array:
    """The index of the first True in each row, the last index where there is none: bool [B, m] -> int32 [B]."""
    size = found.shape[1]
    indices = xp.arange(size, dtype=xp.int32)[None, :]
    return xp.min(xp.where(found, indices, size - 1), axis=1).astype(xp.int32)


def take(xp: Any, blocks: Array, index: Array) -> Array:
    """Row b of the result is blocks[b, index[b]]: [B, n, m] and [B] -> [B, m]."""
    return xp.take_along_axis(blocks, index[:, None, None], axis=1)[:, 0]


def sum_of(xp: Any, values: Array, axis: int) -> Array:
    """A sum of uint32 as uint32 (numpy would widen it; the sums here fit)."""
    return xp.sum(values, axis=axis).astype(xp.uint32)


def limbs(xp: Any, values: Array, axis: int) -> tuple[Array, Array]:
    """The exact sum of uint32 along an axis as (high, low): high * 2**16 + low, low below 2**16."""
    low = sum_of(xp, values & LOW, axis)
    return sum_of(xp, values >> 16, axis) + (low >> 16), low & LOW
