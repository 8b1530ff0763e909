"""Logits as integers: how far each is below the highest, and its probability in units of the most likely token's.

After one float32 subtraction and one product per logit everything is integer arithmetic, the same on every backend.
Weights are `WEIGHT_ONE` times the ratio to the most likely token, with a relative error below 2e-5 (and an absolute one
of half a unit), so that what is less likely than 2**-25 times the most likely token weighs nothing.
"""

import math
from typing import Any

from workers.sampling.noise import Array
from workers.sampling.vocabulary_blocks import LOW

MIN_TEMPERATURE = 1e-6
WEIGHT_ONE = 1 << 24
OCTAVE = 1 << 16
"""Steps in which the logarithm of a probability ratio is counted, per halving."""
FAR = 26 * OCTAVE
"""Steps at which a weight is 0."""
LIMIT = 1e20
"""Distances are clipped here."""
_POLYNOMIAL = (726735, 62782, 55864, 28735)
"""2**-f = 1 - c1 f + c2 f^2 - c3 f^3 + c4 f^4 on [0, 1], as integers scaled by 2**20, 2**18, 2**20 and 2**22."""


def is_finite(best: Array) -> Array:
    """Where a row's highest logit, as `workers.sampling.vocabulary_blocks.best_of` has it, is a number: bool [B]."""
    return (best > -math.inf) & (best < math.inf)


def distances(xp: Any, blocks: Array, best: Array) -> Array:
    """How far each logit is below its row's highest: float32, 0 and up, `LIMIT` for what can never be sampled.

    blocks float32 [B, n, m], best float32 [B]. Comparisons with NaN are false, so that whatever is not finite is far.
    """
    distance = xp.where(is_finite(best), best, 0.0)[:, None, None] - blocks
    return xp.where(distance < LIMIT, xp.maximum(distance, 0.0), LIMIT).astype(xp.float32)


def steps_of(xp: Any, distance: Array, temperature: Array, far: int = FAR) -> Array:
    """The distance [B, n, m] as -log2 of the probability ratio, in steps of 1/OCTAVE: uint32, at most `far`.

    One product and a truncation, and no sum after it, which a compiler could fuse and round differently.
    """
    scale = xp.array(OCTAVE * math.log2(math.e), dtype=xp.float32) / xp.maximum(temperature, MIN_TEMPERATURE)
    steps = xp.minimum(distance * scale[:, None, None], float(far))
    return steps.astype(xp.int32).astype(xp.uint32)


def weights_of(xp: Any, steps: Array) -> Array:
    """WEIGHT_ONE * 2**-(steps / OCTAVE), rounded: uint32. Never rises with the steps; exact at 0."""
    c1, c2, c3, c4 = _POLYNOMIAL
    fraction, octave = steps & LOW, steps >> 16
    a3 = c3 - ((fraction * c4 + (1 << 17)) >> 18)
    a2 = c2 - ((fraction * a3 + (1 << 17)) >> 18)
    a1 = c1 - ((fraction * a2 + (1 << 13)) >> 14)
    # a1 has 20 bits, so that the product with 16 goes in two parts.
    value = WEIGHT_ONE - (((a1 >> 4) * fraction + (((a1 & 15) * fraction) >> 4)) >> 8)
    half = (xp.array(1, dtype=xp.uint32) << octave) >> 1
    return (value + half) >> octave
