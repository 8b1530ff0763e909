"""Filters of sampling: top_k, typical_p, top_p, min_p and XTC set the weights of tokens to 0.

Written against an array namespace `xp` like `workers.sampling.sample`, which states what each filter keeps.
"""

from typing import Any

from workers.sampling.fixed_point import FAR, WEIGHT_ONE, steps_of, weights_of
from workers.sampling.noise import COIN, Array, noise
from workers.sampling.sampling_arrays import SamplingArrays
from workers.sampling.vocabulary_blocks import limbs, sum_of

INFORMATION = 1 << 15
"""The unit of products of a weight and a number of steps."""


def filter_weights(xp: Any, distance: Array, arrays: SamplingArrays, mass: Array | None = None) -> Array:
    """Return the weights of tokens at these distances, [B, n, BLOCK], 0 for those that the filters remove.

    `mass` [B] is the mass of all tokens, if `distance` has only some of them and no row uses typical_p or XTC. Rows
    with top_k use the mass of the given tokens.
    """
    steps = steps_of(xp, distance, arrays.temperature)
    weights = weights_of(xp, steps)
    nearest = _nearest(xp, distance, arrays.top_k)
    weights = weights * (distance.view(xp.uint32) <= nearest).astype(xp.uint32)
    whole, highest = mass_of(xp, weights), WEIGHT_ONE
    if arrays.typical_p is not None:
        weights = _typical(xp, steps, weights, arrays.typical_p, whole)
        whole = mass_of(xp, weights)
        highest = xp.max(xp.max(weights, axis=2), axis=1).astype(xp.float32)
    wanted = arrays.top_p * (whole if mass is None else xp.where(arrays.top_k > 0, whole, mass))
    if arrays.typical_p is not None:
        wanted = xp.maximum(wanted, 1.0)  # the mass that is left may be so small that the product is 0
    likely = _likely(xp, steps, weights, arrays.top_p, wanted)
    least = (arrays.min_p * highest).astype(xp.uint32)[:, None, None]
    weights = weights * ((steps <= likely) & (weights >= least)).astype(xp.uint32)
    return weights if arrays.xtc_probability is None else _exclude_top_choices(xp, weights, arrays)


def _typical(xp: Any, steps: Array, weights: Array, typical_p: Array, mass: Array) -> Array:
    """Return the weights of the tokens whose information is closest to the entropy, with a share typical_p of the mass.

    In steps, the information of a token is its number of steps, and the entropy their mean, plus the same number: the
    logarithm of the mass.
    """
    information = mass_of(xp, information_of(weights, steps))
    mean = mean_steps(xp, information, mass)[:, None, None]
    shift = xp.maximum(steps, mean) - xp.minimum(steps, mean)
    wanted = xp.maximum(typical_p * mass, 1.0)

    def enough(limit: Array) -> Array:
        return mass_of(xp, weights * (shift <= limit[:, None, None]).astype(xp.uint32)) >= wanted

    limit = _bisect(xp, enough, typical_p.shape[0], FAR)
    limit = xp.where((typical_p >= 1.0)[:, None, None], xp.array(FAR, dtype=xp.uint32), limit)
    return weights * (shift <= limit).astype(xp.uint32)


def information_of(weights: Array, steps: Array) -> Array:
    """Return weight * steps / INFORMATION of each token, rounded down: uint32, at most 2**24.1.

    The weight has two parts of 12 bits. Both products have at most 32 bits, as many steps mean a low weight.
    """
    return ((weights >> 12) * steps + (((weights & 0xFFF) * steps) >> 12)) >> 3


def mean_steps(xp: Any, information: Array, mass: Array) -> Array:
    """Return the mean number of steps, rounded down, from sums over all tokens as float32: uint32, at most FAR."""
    mean = information / xp.maximum(mass, 1.0) * float(INFORMATION)
    return xp.minimum(mean, float(FAR)).astype(xp.int32).astype(xp.uint32)


def _exclude_top_choices(xp: Any, weights: Array, arrays: SamplingArrays) -> Array:
    """Return the weights without the top choices but the least likely of them, in rows whose coin asks for it."""
    wanted = (arrays.xtc_threshold * mass_of(xp, weights))[:, None, None]
    top = (weights > 0) & (weights.astype(xp.float32) >= wanted)
    lowest = xp.where(top, weights, xp.array(WEIGHT_ONE, dtype=xp.uint32))
    lowest = xp.min(xp.min(lowest, axis=2), axis=1)
    limit = xp.where(excludes(xp, arrays), lowest, xp.array(WEIGHT_ONE, dtype=xp.uint32))
    return weights * (weights <= limit[:, None, None]).astype(xp.uint32)


def excludes(xp: Any, arrays: SamplingArrays) -> Array:
    """Return in which rows XTC excludes tokens, with its probability: a coin that depends on (seed, position) alone."""
    bits = noise(xp, arrays.seed_low, arrays.seed_high, arrays.position, COIN)
    return (bits >> 8) < (arrays.xtc_probability * float(1 << 24)).astype(xp.uint32)


def _nearest(xp: Any, distance: Array, top_k: Array) -> Array:
    """Return the k-th smallest distance as bits [B, 1, 1]: non-negative floats are ordered as their bits are.

    Finds two bits at a time. The counts of the three candidates are summed in one float32 per block, eight bits each: a
    block's sum is below 2**24 and so exact, and compilers sum float32 fastest.
    """
    bits = distance.view(xp.uint32)
    length = bits.shape[1] * bits.shape[2]  # padding is farther than any token
    wanted = xp.minimum(xp.where(top_k > 0, top_k, length), length).astype(xp.float32)
    none = xp.array(0, dtype=xp.float32)
    ones = [xp.array(1 << place, dtype=xp.float32) for place in (0, 8, 16)]
    found = xp.zeros(top_k.shape, dtype=xp.uint32)
    for shift in range(30, -1, -2):
        limits = [found + xp.array((digit << shift) - 1, dtype=xp.uint32) for digit in (1, 2, 3)]
        near = [xp.where(bits <= limit[:, None, None], one, none) for limit, one in zip(limits, ones, strict=True)]
        counts = xp.sum(near[0] + near[1] + near[2], axis=2).astype(xp.uint32)
        for place in (0, 8, 16):
            # The digit is the number of candidates that are too near. Rows have fewer than 2**24 tokens, so it is
            # exact.
            count = xp.sum(((counts >> place) & 0xFF).astype(xp.float32), axis=1)
            found = found + ((count < wanted).astype(xp.uint32) << shift)
    return found[:, None, None]


def _likely(xp: Any, steps: Array, weights: Array, top_p: Array, wanted: Array) -> Array:
    """Return the smallest number of steps, [B, 1, 1], within which the tokens have the wanted mass."""

    def enough(limit: Array) -> Array:
        return mass_of(xp, weights * (steps <= limit[:, None, None]).astype(xp.uint32)) >= wanted

    likely = _bisect(xp, enough, top_p.shape[0], FAR)
    # The mass is rounded: without this, a tail below its last place would be dropped from rows that keep all.
    keeps_all = (top_p >= 1.0)[:, None, None]
    return xp.where(keeps_all, xp.array(FAR, dtype=xp.uint32), likely)


def _bisect(xp: Any, enough: Any, rows: int, highest: int) -> Array:
    """Return the smallest uint32 in 0 .. highest for which `enough` holds in each row; it must hold for `highest`."""
    low = xp.zeros((rows,), dtype=xp.uint32)
    high = low + xp.array(highest, dtype=xp.uint32)
    for _ in range(highest.bit_length()):
        middle = (low + high) >> 1
        held = enough(middle)
        low, high = xp.where(held, low, middle + 1), xp.where(held, middle, high)
        low = xp.minimum(low, high)
    return high[:, None, None]


def mass_of(xp: Any, weights: Array) -> Array:
    """Return each row's sum of weights as float32 [B], rounded monotonically."""
    high, low = limbs(xp, sum_of(xp, weights, 2), 1)
    return high.astype(xp.float32) * 65536.0 + low.astype(xp.float32)
