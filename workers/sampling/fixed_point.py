"""Fixed-point logits and probabilities: distances to the highest logit, and weights relative to the most likely token.

After one float32 subtraction and one product per logit all arithmetic is on integers, identical on every backend.
A weight is `WEIGHT_ONE` times the ratio to the most likely token, with a relative error below 2e-5 and an absolute
error of half a unit. Tokens less likely than 2**-25 times the most likely one have weight 0.
"""

import math
from typing import Any

from workers.sampling.noise import Array
from workers.sampling.vocabulary_blocks import LOW

MIN_TEMPERATURE = 1e-6
WEIGHT_ONE = 1 << 24
OCTAVE = 1 << 16
"""Steps per halving of a probability: the unit of logarithms of probability ratios."""
FAR = 26 * OCTAVE
"""Steps from which a weight is 0."""
LIMIT = 1e20
"""Upper bound at which distances are clipped."""
_POLYNOMIAL = (726735, 62782, 55864, 28735)
"""2**-f = 1 - c1 f + c2 f^2 - c3 f^3 + c4 f^4 on [0, 1], as integers scaled by 2**20, 2**18, 2**20 and 2**22."""


def is_finite(best: Array) -> Array:
    """Return where a row's maximum from `workers.sampling.vocabulary_blocks.best_of` is finite: bool [B]."""
    return (best > -math.inf) & (best < math.inf)


def distances(xp: Any, blocks: Array, best: Array) -> Array:
    """Return the distance of each logit to its row's maximum: float32, at least 0, `LIMIT` for excluded tokens.

    `blocks` is float32 [B, n, m], `best` float32 [B]. Comparisons with NaN are false, so a non-finite logit is at
    `LIMIT`.
    """
    distance = xp.where(is_finite(best), best, 0.0)[:, None, None] - blocks
    return xp.where(distance < LIMIT, xp.maximum(distance, 0.0), LIMIT).astype(xp.float32)


def steps_of(xp: Any, distance: Array, temperature: Array, far: int = FAR) -> Array:
    """Convert distances [B, n, m] to -log2 of the probability ratio, in steps of 1/OCTAVE: uint32, at most `far`.

    This is one product and a truncation, without a sum after it, which a compiler could fuse and round differently.
    """
    scale = xp.array(OCTAVE * math.log2(math.e), dtype=xp.float32) / xp.maximum(temperature, MIN_TEMPERATURE)
    steps = xp.minimum(distance * scale[:, None, None], float(far))
    return steps.astype(xp.int32).astype(xp.uint32)


def weights_of(xp: Any, steps: Array) -> Array:
    """Return WEIGHT_ONE * 2**-(steps / OCTAVE), rounded: uint32. Monotonic in the steps, and exact at 0."""
    c1, c2, c3, c4 = _POLYNOMIAL
    fraction, octave = steps & LOW, steps >> 16
    a3 = c3 - ((fraction * c4 + (1 << 17)) >> 18)
    a2 = c2 - ((fraction * a3 + (1 << 17)) >> 18)
    a1 = c1 - ((fraction * a2 + (1 << 13)) >> 14)
    # a1 has 20 bits, so its product with 16 bits is computed in two parts.
    value = WEIGHT_ONE - (((a1 >> 4) * fraction + (((a1 & 15) * fraction) >> 4)) >> 8)
    half = (xp.array(1, dtype=xp.uint32) << octave) >> 1
    return (value + half) >> octave
