"""Samples tokens from logits. The one definition for all backends.

Written against an array namespace `xp` (numpy, jax.numpy, also when traced, or mlx.core). After one float32
subtraction and one multiplication per logit all arithmetic is on integers, whose sums do not depend on their order.
Equal logits therefore give the same token on every backend, at every batch size and in every compiled graph. Rows are
independent of each other.

Semantics, in this order, as in transformers and vLLM:

1. temperature: logits are divided by it. 0 (or below) is greedy: the smallest id among the highest logits.
   A positive temperature acts as at least `MIN_TEMPERATURE`.
2. top_k: keeps tokens with at least the k-th highest logit, ties with the k-th included; 0 keeps all, 1 is greedy.
   The order is that of the float32 distances to the highest logit.
3. top_p: keeps, of these, the smallest set of most likely tokens whose share of their mass is at least top_p. Ties with
   the last one and the most likely token are always kept. 1 keeps all.
4. min_p: keeps, of these, tokens with at least min_p times the probability of the most likely token.
5. One of the remaining tokens is sampled in proportion to its probability: by inverting their cumulative distribution,
   in the order of ids, at a random point that depends on (seed, position) alone (`workers.sampling.noise`).

Probabilities are integers: `WEIGHT_ONE` times the ratio to the most likely token, with a relative error below 2e-5 and
an absolute error of half a unit. Tokens less likely than 2**-25 times the most likely one are never sampled.

No sort, scatter, float64 or argmax over the vocabulary is used, because compilers generate slow code for them.
Thresholds are found bit by bit on integers, and maxima and sums are computed by blocks.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from workers.sampling.fixed_point import FAR, MIN_TEMPERATURE, WEIGHT_ONE, distances, is_finite, steps_of, weights_of
from workers.sampling.noise import Array, noise
from workers.sampling.sample_spec import SampleSpec
from workers.sampling.vocabulary_blocks import BLOCK, LOW, best_of, blocks_of, first, fold, limbs, sum_of, take

GROUP = 32
"""Blocks in a group."""


class SamplingArrays(NamedTuple):
    """Sampling parameters of the rows of a call: arrays [B] of the caller's namespace."""

    temperature: Array
    """float32, as are `top_p` and `min_p`."""
    top_k: Array
    """int32."""
    top_p: Array
    min_p: Array
    seed_low: Array
    """uint32, as are `seed_high` and `position`."""
    seed_high: Array
    position: Array


def sampling_arrays(specs: Sequence[SampleSpec]) -> SamplingArrays:
    """Gather the parameters of rows into numpy arrays."""
    samplings = [spec.sampling for spec in specs]
    # A device may flush smaller numbers to 0, which would mean greedy.
    heats = [
        max(sampling.temperature, MIN_TEMPERATURE) if sampling.temperature > 0.0 else 0.0 for sampling in samplings
    ]
    return SamplingArrays(
        np.array(heats, np.float32),
        np.array([sampling.top_k for sampling in samplings], np.int32),
        np.array([sampling.top_p for sampling in samplings], np.float32),
        np.array([sampling.min_p for sampling in samplings], np.float32),
        np.array([sampling.seed & 0xFFFFFFFF for sampling in samplings], np.uint32),
        np.array([sampling.seed >> 32 for sampling in samplings], np.uint32),
        np.array([spec.position for spec in specs], np.uint32),
    )


def needs_sampling(specs: Sequence[SampleSpec]) -> bool:
    """Return False if all rows are greedy on unchanged logits, so that `greedy` suffices."""
    return any(
        (spec.sampling.temperature > 0.0 and spec.sampling.top_k != 1)
        or spec.edits is not None
        or spec.mask is not None
        for spec in specs
    )


def needs_filters(specs: Sequence[SampleSpec]) -> bool:
    """Return False if no sampled row uses top_k, top_p or min_p, so that `sample(filters=False)` suffices."""
    samplings = [spec.sampling for spec in specs if spec.sampling.temperature > 0.0]
    return any(sampling.top_k or sampling.top_p < 1.0 or sampling.min_p for sampling in samplings)


def greedy(xp: Any, logits: Array) -> Array:
    """Return the smallest id among the highest logits: float32 [B, V] -> int32 [B]; -1 without a finite maximum."""
    blocks = blocks_of(xp, logits)
    return _greedy(xp, blocks, *best_of(xp, blocks))


def _greedy(xp: Any, blocks: Array, maxima: Array, best: Array) -> Array:
    block = first(xp, maxima >= best[:, None])
    lane = first(xp, take(xp, blocks, block) >= best[:, None])
    return xp.where(is_finite(best), block * BLOCK + lane, -1).astype(xp.int32)


def sample(
    xp: Any,
    logits: Array,
    arrays: SamplingArrays,
    *,
    filters: bool = True,
) -> Array:
    """Sample a token for each row: int32 [B], -1 for a row without a finite maximum (NaN, an infinity, all -inf).

    `logits` is float32 [B, V]. A logit of -inf is never sampled. `filters=False` ignores top_k, top_p and min_p, for
    calls in which no row uses them: the tokens are the same, for less work.
    """
    blocks = blocks_of(xp, logits)
    maxima, best = best_of(xp, blocks)
    bits = noise(xp, arrays.seed_low, arrays.seed_high, arrays.position)
    if filters:
        weights = filtered_weights(xp, logits, arrays)
        sampled = sample_at(xp, sum_of(xp, weights, 2), lambda block: take(xp, weights, block), bits)
    else:
        sampled = sample_unfiltered(xp, blocks, best, arrays.temperature, bits)
    highest = _greedy(xp, blocks, maxima, best)
    return xp.where((arrays.temperature <= 0.0) | (arrays.top_k == 1) | (highest < 0), highest, sampled)


def sample_unfiltered(xp: Any, blocks: Array, best: Array, temperature: Array, bits: Array) -> Array:
    """Sample from all tokens: int32 [B]. Weights are computed once for the sums, and again in the chosen block."""

    def weigh(some: Array) -> Array:
        return weights_of(xp, steps_of(xp, distances(xp, some, best), temperature))

    def fetch(block: Array) -> Array:
        return weigh(take(xp, blocks, block)[:, None])[:, 0]

    return sample_at(xp, sum_of(xp, weigh(blocks), 2), fetch, bits)


def filtered_weights(xp: Any, logits: Array, arrays: SamplingArrays) -> Array:
    """Return the weights of all tokens, 0 for those that the filters remove: uint32 [B, n, BLOCK], padded with 0."""
    blocks = blocks_of(xp, logits)
    distance = distances(xp, blocks, best_of(xp, blocks)[1])
    return filter_weights(xp, distance, arrays)


def filter_weights(xp: Any, distance: Array, arrays: SamplingArrays, mass: Array | None = None) -> Array:
    """Return the weights of tokens at these distances, [B, n, BLOCK], 0 for those that the filters remove.

    `mass` [B] is the mass of all tokens, if `distance` has only some of them. Rows with top_k use the mass of the given
    tokens.
    """
    steps = steps_of(xp, distance, arrays.temperature)
    weights = weights_of(xp, steps)
    nearest = _nearest(xp, distance, arrays.top_k)
    weights = weights * (distance.view(xp.uint32) <= nearest).astype(xp.uint32)
    whole = mass_of(xp, weights)
    wanted = arrays.top_p * (whole if mass is None else xp.where(arrays.top_k > 0, whole, mass))
    likely = _likely(xp, steps, weights, arrays.top_p, wanted)
    least = (arrays.min_p * WEIGHT_ONE).astype(xp.uint32)[:, None, None]
    return weights * ((steps <= likely) & (weights >= least)).astype(xp.uint32)


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


def sample_at(xp: Any, sums: Array, fetch: Callable[[Array], Array], bits: Array) -> Array:
    """Return the token at the point bits / 2**32 of each row's cumulative weights: int32 [B].

    `sums` uint32 [B, n] are the weights of the blocks; `fetch` returns the weights [B, BLOCK] of one block per row,
    [B]. Searches groups, then blocks, then lanes. All sums are exact.
    """
    blocks = fold(xp, sums, GROUP, 0)
    high, low = limbs(xp, blocks, 2)
    point = _point(bits, *_both(xp, high, low))
    group, point = _locate(xp, high, low, point)
    inside = take(xp, blocks, group)
    block, point = _locate(xp, inside >> 16, inside & LOW, point)
    # Only a row without any weight can be out of range, and -1 replaces its token.
    block = xp.minimum(group * GROUP + block, sums.shape[1] - 1)
    lanes = fetch(block)
    lane, _ = _locate(xp, lanes >> 16, lanes & LOW, point)
    return block * BLOCK + lane


def _both(xp: Any, high: Array, low: Array) -> tuple[Array, Array]:
    """Sum two-limb numbers [B, m] to two limbs [B]."""
    lows = sum_of(xp, low, 1)
    return sum_of(xp, high, 1) + (lows >> 16), lows & LOW


def _point(bits: Array, high: Array, low: Array) -> tuple[Array, Array]:
    """Return floor(bits * total / 2**32) as two limbs, for totals below 2**47, by long multiplication of 16-bit
    digits."""
    digits = (low, high & LOW, high >> 16)
    columns = [low * 0 for _ in range(6)]
    for i, factor in enumerate((bits & LOW, bits >> 16)):
        for j, digit in enumerate(digits):
            product = factor * digit
            columns[i + j] = columns[i + j] + (product & LOW)
            columns[i + j + 1] = columns[i + j + 1] + (product >> 16)
    for index in range(5):
        columns[index + 1] = columns[index + 1] + (columns[index] >> 16)
    return (columns[4] << 16) | (columns[3] & LOW), columns[2] & LOW


def _locate(xp: Any, high: Array, low: Array, point: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
    """Return the first index whose cumulative sum exceeds the point, and the point relative to that index's start.

    Takes two-limb numbers [B, m] whose sum exceeds the point. Cumulative sums use a triangular matrix, as m is small.
    """
    size = high.shape[1]
    indices = xp.arange(size, dtype=xp.int32)
    triangle = (indices[None, :, None] >= indices[None, None, :]).astype(xp.uint32)
    lows = sum_of(xp, low[:, None, :] * triangle, 2)
    highs = sum_of(xp, high[:, None, :] * triangle, 2) + (lows >> 16)
    lows = lows & LOW
    point_high, point_low = point[0][:, None], point[1][:, None]
    passed = ((highs < point_high) | ((highs == point_high) & (lows <= point_low))).astype(xp.uint32)
    before_high, before_low = _both(xp, high * passed, low * passed)
    index = xp.minimum(sum_of(xp, passed, 1), xp.array(size - 1, dtype=xp.uint32)).astype(xp.int32)
    # Borrow one from the high limb, and return it where it was not needed.
    rest = point[1] + (LOW + 1) - before_low
    return index, (point[0] - before_high - 1 + (rest >> 16), rest & LOW)
