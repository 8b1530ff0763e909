"""Samples from the most likely tokens only: the result of `workers.sampling.sample.sample` at a fraction of its cost.

top_k, top_p and min_p keep a few of the most likely tokens. This searches for them in the cells (runs of `CELL` ids)
with the most likely tokens, up to `CELLS` cells. If these cells contain all tokens that the filters keep, the token is
exactly that of `sample`: the thresholds are the same, and the sums are of integers. Otherwise the result is
`UNDECIDED`, and the caller uses `sample`.
"""

import math
from typing import Any

from workers.sampling.filters import filter_weights, mass_of
from workers.sampling.fixed_point import FAR, WEIGHT_ONE, distances, is_finite, steps_of, weights_of
from workers.sampling.noise import Array, noise
from workers.sampling.sample import sample_at
from workers.sampling.sampling_arrays import SamplingArrays
from workers.sampling.vocabulary_blocks import BLOCK, best_of, blocks_of, first, fold, sum_of, take

CELL = 16
CELLS = 256
UNDECIDED = -2
_LANES = CELL * CELLS
_GROUP = 32
"""Cells in a group, in the search for the chosen cells."""
_SHIFTS = (17, 13, 9, 5)
"""Shifts of the 4-bit digits by which the largest step is found, to 1/2048 of a halving."""


def sample_top_candidates(
    xp: Any,
    logits: Array,
    arrays: SamplingArrays,
) -> Array:
    """Return the tokens of `sample` with the same arguments, or `UNDECIDED`: int32 [B]. `arrays` are those of
    `SamplingArrays.common`."""
    temperature, top_k, top_p, min_p = arrays[:4]
    cells = fold(xp, logits, CELL, -math.inf)
    maxima, best = best_of(xp, cells)
    nearest = steps_of(xp, distances(xp, maxima[:, :, None], best), temperature)[:, :, 0]
    within, chosen, complete = _choose(xp, nearest)
    distance = distances(xp, _lanes(xp, cells, chosen), best)
    steps = steps_of(xp, distance, temperature)

    blocks = blocks_of(xp, logits)
    sums = sum_of(xp, weights_of(xp, steps_of(xp, distances(xp, blocks, best), temperature)), 2)
    mass = mass_of(xp, sums[:, :, None])
    kept = filter_weights(xp, distance, arrays, mass)
    inside = (steps <= within[:, None, None]).astype(xp.uint32)
    share = mass_of(xp, weights_of(xp, steps) * inside)
    count = sum_of(xp, sum_of(xp, inside, 2), 1)
    decided = complete & _decided(xp, within, count, share >= top_p * mass, top_k, top_p, min_p)

    def fetch(block: Array) -> Array:
        lanes = distances(xp, take(xp, blocks, block)[:, None], best)
        return weights_of(xp, steps_of(xp, lanes, temperature))[:, 0]

    bits = noise(xp, arrays.seed_low, arrays.seed_high, arrays.position)
    unfiltered = sample_at(xp, sums, fetch, bits)
    sampled = _token(xp, chosen, sample_at(xp, sum_of(xp, kept, 2), lambda block: take(xp, kept, block), bits))
    highest = _token(xp, chosen, _first_lane(xp, distance))
    free = (top_k <= 0) & (top_p >= 1.0) & (min_p <= 0.0)
    token = xp.where(free, unfiltered, xp.where(decided, sampled, UNDECIDED))
    token = xp.where((temperature <= 0.0) | (top_k == 1), highest, token)
    return xp.where(is_finite(best), token, -1).astype(xp.int32)


def _decided(xp: Any, within: Array, count: Array, enough: Array, top_k: Array, top_p: Array, min_p: Array) -> Array:
    """Return where all tokens that the filters keep are among the `count` tokens of at most `within` steps.

    `enough` is true where those tokens have the share top_p of the mass of all.
    """
    by_top_k = (top_k > 0) & (top_k <= count.astype(xp.int32))
    by_top_p = (top_k <= 0) & (top_p < 1.0) & enough
    least = (min_p * WEIGHT_ONE).astype(xp.uint32)
    by_min_p = (weights_of(xp, within + 1) < least) & ((top_k <= 0) | (top_p >= 1.0))
    return by_top_k | by_top_p | by_min_p | (within >= FAR)


def _choose(xp: Any, nearest: Array) -> tuple[Array, Array, Array]:
    """Choose the cells with a token of at most `within` steps, given the steps of each cell's most likely one, [B, n].

    Returns `within` [B], the cells in order, int32 [B, CELLS] padded with -1, and whether these are all, bool [B].
    """
    within = xp.zeros((nearest.shape[0],), dtype=xp.uint32)
    digits = xp.arange(1, 16, dtype=xp.uint32)[None, :]
    for shift in _SHIFTS:
        limits = within[:, None] + (digits << shift)
        counts = sum_of(xp, (nearest[:, None, :] <= limits[:, :, None]).astype(xp.uint32), 2)
        within = within + (sum_of(xp, (counts <= CELLS).astype(xp.uint32), 1) << shift)
    groups = fold(xp, (nearest <= within[:, None]).astype(xp.uint32), _GROUP, 0)
    so_far = _cumulative(xp, groups)
    ends = _cumulative(xp, so_far[:, None, :, _GROUP - 1])[:, 0]
    places = xp.arange(CELLS, dtype=xp.uint32)[None, :]
    passed = (ends[:, None, :] <= places[:, :, None]).astype(xp.uint32)
    group = xp.minimum(sum_of(xp, passed, 2), xp.array(ends.shape[1] - 1, dtype=xp.uint32)).astype(xp.int32)
    rest = places - sum_of(xp, passed * so_far[:, None, :, _GROUP - 1], 2)
    inside = xp.take_along_axis(so_far, group[:, :, None], axis=1)
    cell = group * _GROUP + sum_of(xp, (inside <= rest[:, :, None]).astype(xp.uint32), 2).astype(xp.int32)
    total = ends[:, ends.shape[1] - 1]
    return within, xp.where(places < total[:, None], cell, -1), total <= CELLS


def _cumulative(xp: Any, values: Array) -> Array:
    """Return cumulative sums of [B, n, m] along the last axis, which is short."""
    indices = xp.arange(values.shape[2], dtype=xp.int32)
    triangle = (indices[:, None] >= indices[None, :]).astype(xp.uint32)
    return sum_of(xp, values[:, :, None, :] * triangle[None, None], 3)


def _lanes(xp: Any, cells: Array, chosen: Array) -> Array:
    """Return the logits of the chosen cells, -inf for -1: [B, n, CELL], [B, CELLS] -> [B, n, BLOCK]."""
    lanes = xp.take_along_axis(cells, xp.maximum(chosen, 0)[:, :, None], axis=1)
    lanes = xp.where((chosen >= 0)[:, :, None], lanes, -math.inf).astype(xp.float32)
    return lanes.reshape(cells.shape[0], _LANES // BLOCK, BLOCK)


def _token(xp: Any, chosen: Array, lane: Array) -> Array:
    """Return the id of a lane of the chosen cells: int32 [B]."""
    return xp.take_along_axis(chosen, (lane // CELL)[:, None], axis=1)[:, 0] * CELL + lane % CELL


def _first_lane(xp: Any, distance: Array) -> Array:
    """Return the first lane with the highest logit: int32 [B]."""
    return first(xp, distance.reshape(distance.shape[0], _LANES) <= 0.0)
