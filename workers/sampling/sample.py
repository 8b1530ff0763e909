"""Samples tokens from logits. The one definition for all backends.

Written against an array namespace `xp` (numpy, jax.numpy, also when traced, or mlx.core). After one float32
subtraction and one multiplication per logit all arithmetic is on integers, whose sums do not depend on their order.
Equal logits therefore give the same token on every backend, at every batch size and in every compiled graph. Rows are
independent of each other.

Semantics, in this order: the temperature before the filters, as in transformers and vLLM, and the filters in the order
of llama.cpp.

1. temperature: logits are divided by it. 0 (or below) is greedy: the smallest id among the highest logits.
   A positive temperature acts as at least `MIN_TEMPERATURE`.
2. top_k: keeps tokens with at least the k-th highest logit, ties with the k-th included; 0 keeps all, 1 is greedy.
   The order is that of the float32 distances to the highest logit.
3. typical_p: keeps, of these, the tokens whose information (minus the logarithm of the probability) is closest to its
   mean, the entropy: the smallest set whose share of their mass is at least typical_p, ties included. 1 keeps all.
   "Locally typical sampling", Meister, Pimentel, Wiher, Cotterell, TACL 2023.
4. top_p: keeps, of these, the smallest set of most likely tokens whose share of their mass is at least top_p. Ties with
   the last one and the most likely of these tokens are always kept. 1 keeps all.
5. min_p: keeps, of these, tokens with at least min_p times the probability of the most likely one that typical_p keeps.
6. XTC ("exclude top choices", by p-e-w, github.com/oobabooga/text-generation-webui/pull/6335): with xtc_probability,
   removes all tokens whose share of the mass that is left is at least xtc_threshold, except the least likely of them,
   ties included. Whether it does depends on (seed, position) alone.
7. One of the remaining tokens is sampled in proportion to its probability: by inverting their cumulative distribution,
   in the order of ids, at a random point that depends on (seed, position) alone (`workers.sampling.noise`).

Probabilities are integers: `WEIGHT_ONE` times the ratio to the most likely token, with a relative error below 2e-5 and
an absolute error of half a unit. Tokens less likely than 2**-25 times the most likely one are never sampled.

No sort, scatter, float64 or argmax over the vocabulary is used, because compilers generate slow code for them.
Thresholds are found bit by bit on integers, and maxima and sums are computed by blocks.
"""

from collections.abc import Callable, Sequence
from typing import Any

from workers.sampling.filters import filter_weights
from workers.sampling.fixed_point import distances, is_finite, steps_of, weights_of
from workers.sampling.noise import Array, noise
from workers.sampling.sample_spec import SampleSpec
from workers.sampling.sampling_arrays import SamplingArrays
from workers.sampling.vocabulary_blocks import BLOCK, LOW, best_of, blocks_of, first, fold, limbs, sum_of, take

GROUP = 32
"""Blocks in a group."""


def needs_sampling(specs: Sequence[SampleSpec]) -> bool:
    """Return False if all rows are greedy on unchanged logits, so that `greedy` suffices.

    Raises `ValueError` for a late mask, without which a row could get a token that is not allowed.
    """
    needed = False
    for spec in specs:
        if spec.late_mask is not None:
            raise ValueError("late_mask: masks must be computed before tokens are sampled")
        sampling = spec.sampling
        if spec.edits is not None or spec.mask is not None or (sampling.temperature > 0.0 and sampling.top_k != 1):
            needed = True
    return needed


def needs_filters(specs: Sequence[SampleSpec]) -> bool:
    """Return False if no sampled row uses a filter, so that `sample(filters=False)` suffices."""
    samplings = [spec.sampling for spec in specs if spec.sampling.temperature > 0.0]
    return needs_rare_filters(specs) or any(
        sampling.top_k or sampling.top_p < 1.0 or sampling.min_p for sampling in samplings
    )


def needs_rare_filters(specs: Sequence[SampleSpec]) -> bool:
    """Return False if no sampled row uses typical_p or XTC, so that `SamplingArrays.common` suffices."""
    return any(
        spec.sampling.temperature > 0.0 and (spec.sampling.typical_p < 1.0 or spec.sampling.xtc_probability)
        for spec in specs
    )


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

    `logits` is float32 [B, V]. A logit of -inf is never sampled. `filters=False` ignores all filters, for calls in
    which no row uses them: the tokens are the same, for less work.
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
