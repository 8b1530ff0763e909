"""How a token is sampled from logits: the one definition, for every backend.

Written against an array namespace `xp` (numpy, jax.numpy, also when traced, or mlx.core). After one float32
subtraction and one multiplication per logit everything is integer arithmetic, whose sums have no order: given equal
logits, every backend, batch size and compiled graph samples the same token, to the bit, and no row sees another one.

Semantics, in this order, as in transformers and vLLM:

1. temperature: logits are divided by it. 0 (or below) is greedy: the smallest id among the highest logits.
   A positive temperature acts as at least `MIN_TEMPERATURE`.
2. top_k: tokens with at least the k-th highest logit are kept, ties with the k-th included; 0 keeps all. 1 is greedy.
   The order is that of the float32 distances to the highest logit.
3. top_p: of these, the smallest set of most likely tokens whose share of their mass is at least top_p; ties with the
   last one are kept as well, and the most likely token always is. 1 keeps all.
4. min_p: of these, tokens with at least min_p times the probability of the most likely token.
5. One of the rest is sampled in proportion to its probability: the inverse of their cumulative distribution, in the
   order of ids, at a random point that depends on (seed, position) alone (`workers.sampling.noise`).

Probabilities are integers: `WEIGHT_ONE` times the ratio to the most likely token, with a relative error below 2e-5 (and
an absolute one of half a unit), so that tokens less likely than 2**-25 times the most likely one are never sampled.

There is no sort, scatter, float64, or argmax over the vocabulary: compilers make slow code of them. Thresholds are
found bit by bit on integers, and maxima and sums go by blocks.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workers.sampling.fixed_point import FAR, MIN_TEMPERATURE, WEIGHT_ONE, distances, is_finite, steps_of, weights_of
from workers.sampling.noise import Array, noise
from workers.sampling.sample_spec import SampleSpec
from workers.sampling.vocabulary_blocks import BLOCK, LOW, best_of, blocks_of, first, fold, limbs, sum_of, take

GROUP = 32
"""Blocks of a group."""


class Parameters(NamedTuple):
    """The sampling parameters of the rows of a call, in the order of `sample`: numpy arrays [B]."""

    temperature: NDArray[np.float32]
    top_k: NDArray[np.int32]
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    seed_low: NDArray[np.uint32]
    seed_high: NDArray[np.uint32]
    position: NDArray[np.uint32]


def parameters(specs: Sequence[SampleSpec]) -> Parameters:
    """Gather the rows' parameters into arrays."""
    samplings = [spec.sampling for spec in specs]
    # Below the least that acts, a device may take a number for 0, which is another way to sample.
    heats = [
        max(sampling.temperature, MIN_TEMPERATURE) if sampling.temperature > 0.0 else 0.0 for sampling in samplings
    ]
    return Parameters(
        np.array(heats, np.float32),
        np.array([sampling.top_k for sampling in samplings], np.int32),
        np.array([sampling.top_p for sampling in samplings], np.float32),
        np.array([sampling.min_p for sampling in samplings], np.float32),
        np.array([sampling.seed & 0xFFFFFFFF for sampling in samplings], np.uint32),
        np.array([sampling.seed >> 32 for sampling in samplings], np.uint32),
        np.array([spec.position for spec in specs], np.uint32),
    )


def needs_sampling(specs: Sequence[SampleSpec]) -> bool:
    """False when all rows are greedy on the logits as they are, so that `greedy` does."""
    return any(
        (spec.sampling.temperature > 0.0 and spec.sampling.top_k != 1)
        or spec.edits is not None
        or spec.mask is not None
        for spec in specs
    )


def needs_filters(specs: Sequence[SampleSpec]) -> bool:
    """False when no row that is sampled uses top_k, top_p or min_p, so that `sample(filters=False)` does."""
    samplings = [spec.sampling for spec in specs if spec.sampling.temperature > 0.0]
    return any(sampling.top_k or sampling.top_p < 1.0 or sampling.min_p for sampling in samplings)


def greedy(xp: Any, logits: Array) -> Array:
    """The smallest id among the highest logits: float32 [B, V] -> int32 [B]; -1 for a row without a finite maximum."""
    blocks = blocks_of(xp, logits)
    return _greedy(xp, blocks, *best_of(xp, blocks))


def _greedy(xp: Any, blocks: Array, maxima: Array, best: Array) -> Array:
    block = first(xp, maxima >= best[:, None])
    lane = first(xp, take(xp, blocks, block) >= best[:, None])
    return xp.where(is_finite(best), block * BLOCK + lane, -1).astype(xp.int32)


def sample(
    xp: Any,
    logits: Array,
    temperature: Array,
    top_k: Array,
    top_p: Array,
    min_p: Array,
    seed_low: Array,
    seed_high: Array,
    position: Array,
    *,
    filters: bool = True,
) -> Array:
    """Sample a token for each row: int32 [B], -1 for a row without a finite maximum (NaN, an infinity, all -inf).

    logits float32 [B, V]; temperature, top_p, min_p float32 [B]; top_k int32 [B]; seeds and position uint32 [B].
    A logit of -inf is never sampled. `filters=False` leaves top_k, top_p and min_p
    out, for calls where no row uses them: the tokens are the same, for less work.
    """
    blocks = blocks_of(xp, logits)
    maxima, best = best_of(xp, blocks)
    bits = noise(xp, seed_low, seed_high, position)
    if filters:
        weights = kept(xp, logits, temperature, top_k, top_p, min_p)
        sampled = sample_at(xp, sum_of(xp, weights, 2), lambda block: take(xp, weights, block), bits)
    else:
        sampled = unfiltered(xp, blocks, best, temperature, bits)
    highest = _greedy(xp, blocks, maxima, best)
    return xp.where((temperature <= 0.0) | (top_k == 1) | (highest < 0), highest, sampled)


def unfiltered(xp: Any, blocks: Array, best: Array, temperature: Array, bits: Array) -> Array:
    """Sample from all tokens: int32 [B]. Weights are computed once for their sums, and again where the token is."""

    def weigh(some: Array) -> Array:
        return weights_of(xp, steps_of(xp, distances(xp, some, best), temperature))

    def fetch(block: Array) -> Array:
        return weigh(take(xp, blocks, block)[:, None])[:, 0]

    return sample_at(xp, sum_of(xp, weigh(blocks), 2), fetch, bits)


def kept(xp: Any, logits: Array, temperature: Array, top_k: Array, top_p: Array, min_p: Array) -> Array:
    """The weights that `sample` samples by, 0 for what the filters leave out: uint32 [B, n, BLOCK], filled up with
    0."""
    blocks = blocks_of(xp, logits)
    distance = distances(xp, blocks, best_of(xp, blocks)[1])
    return filtered(xp, distance, temperature, top_k, top_p, min_p)


def filtered(
    xp: Any,
    distance: Array,
    temperature: Array,
    top_k: Array,
    top_p: Array,
    min_p: Array,
    mass: Array | None = None,
) -> Array:
    """The weights of tokens at these distances, [B, n, BLOCK], 0 for what the filters leave out.

    `mass` [B] is that of all tokens where those given are not all; the shares of rows that use top_k are of theirs.
    """
    steps = steps_of(xp, distance, temperature)
    weights = weights_of(xp, steps)
    nearest = _nearest(xp, distance, top_k)
    weights = weights * (distance.view(xp.uint32) <= nearest).astype(xp.uint32)
    whole = mass_of(xp, weights)
    wanted = top_p * (whole if mass is None else xp.where(top_k > 0, whole, mass))
    likely = _likely(xp, steps, weights, top_p, wanted)
    least = (min_p * WEIGHT_ONE).astype(xp.uint32)[:, None, None]
    return weights * ((steps <= likely) & (weights >= least)).astype(xp.uint32)


def _nearest(xp: Any, distance: Array, top_k: Array) -> Array:
    """The k-th smallest distance, as bits [B, 1, 1]: non-negative floats are ordered as their bits are.

    Found two bits at a time. The counts of the three candidates go through the blocks in one float32, eight bits each:
    a block's sum is below 2**24 and so exact, and compilers sum float32 fastest.
    """
    bits = distance.view(xp.uint32)
    length = bits.shape[1] * bits.shape[2]  # what fills the blocks up is farther than any token
    wanted = xp.minimum(xp.where(top_k > 0, top_k, length), length).astype(xp.float32)
    none = xp.array(0, dtype=xp.float32)
    ones = [xp.array(1 << place, dtype=xp.float32) for place in (0, 8, 16)]
    found = xp.zeros(top_k.shape, dtype=xp.uint32)
    for shift in range(30, -1, -2):
        limits = [found + xp.array((digit << shift) - 1, dtype=xp.uint32) for digit in (1, 2, 3)]
        near = [xp.where(bits <= limit[:, None, None], one, none) for limit, one in zip(limits, ones, strict=True)]
        counts = xp.sum(near[0] + near[1] + near[2], axis=2).astype(xp.uint32)
        for place in (0, 8, 16):
            # The digit is the number of candidates that are too near. Rows have fewer than 2**24 tokens: exact.
            count = xp.sum(((counts >> place) & 0xFF).astype(xp.float32), axis=1)
            found = found + ((count < wanted).astype(xp.uint32) << shift)
    return found[:, None, None]


def _likely(xp: Any, steps: Array, weights: Array, top_p: Array, wanted: Array) -> Array:
    """The smallest number of steps, [B, 1, 1], at which the tokens so far have the wanted mass."""

    def enough(limit: Array) -> Array:
        return mass_of(xp, weights * (steps <= limit[:, None, None]).astype(xp.uint32)) >= wanted

    likely = _bisect(xp, enough, top_p.shape[0], FAR)
    # The mass is rounded: a tail below its last place would be dropped from the rows that keep all.
    keeps_all = (top_p >= 1.0)[:, None, None]
    return xp.where(keeps_all, xp.array(FAR, dtype=xp.uint32), likely)


def _bisect(xp: Any, enough: Any, rows: int, highest: int) -> Array:
    """The smallest uint32 of 0 .. highest for which `enough` holds in each row; it must hold for the highest."""
    low = xp.zeros((rows,), dtype=xp.uint32)
    high = low + xp.array(highest, dtype=xp.uint32)
    for _ in range(highest.bit_length()):
        middle = (low + high) >> 1
        held = enough(middle)
        low, high = xp.where(held, low, middle + 1), xp.where(held, middle, high)
        low = xp.minimum(low, high)
    return high[:, None, None]


def mass_of(xp: Any, weights: Array) -> Array:
    """A row's sum of weights as float32 [B], rounded in a way that never falls when the sum rises."""
    high, low = limbs(xp, sum_of(xp, weights, 2), 1)
    return high.astype(xp.float32) * 65536.0 + low.astype(xp.float32)


def sample_at(xp: Any, sums: Array, fetch: Callable[[Array], Array], bits: Array) -> Array:
    """The token at the point bits / 2**32 of the rows' cumulative weights: int32 [B].

    `sums` uint32 [B, n] are those of blocks, and `fetch` takes a block a row, [B], to its weights, [B, BLOCK]. The
    search goes down from groups to blocks to lanes; all sums are exact.
    """
    blocks = fold(xp, sums, GROUP, 0)
    high, low = limbs(xp, blocks, 2)
    point = _point(bits, *_both(xp, high, low))
    group, point = _locate(xp, high, low, point)
    inside = take(xp, blocks, group)
    block, point = _locate(xp, inside >> 16, inside & LOW, point)
    # Only a row that has no weight at all, which -1 answers for, can come out of range.
    block = xp.minimum(group * GROUP + block, sums.shape[1] - 1)
    lanes = fetch(block)
    lane, _ = _locate(xp, lanes >> 16, lanes & LOW, point)
    return block * BLOCK + lane


def _both(xp: Any, high: Array, low: Array) -> tuple[Array, Array]:
    """The sum of two-limb numbers [B, m] as two limbs [B]."""
    lows = sum_of(xp, low, 1)
    return sum_of(xp, high, 1) + (lows >> 16), lows & LOW


def _point(bits: Array, high: Array, low: Array) -> tuple[Array, Array]:
    """floor(bits * total / 2**32) as two limbs, for totals below 2**47: schoolbook products of 16-bit digits."""
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
    """The first index whose cumulative sum is above the point, and the point counted from that index's start.

    Two-limb numbers [B, m] that sum to more than the point; cumulative sums by a triangle, as m is small.
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
    # Borrow one from the high limb, and give it back where it was not needed.
    rest = point[1] + (LOW + 1) - before_low
    return index, (point[0] - before_high - 1 + (rest >> 16), rest & LOW)
