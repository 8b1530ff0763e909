"""`workers.sampling.sample.sample` for most of what is asked of it, at a fraction of its work.

top_k, top_p and min_p leave a few of the most likely tokens. Here those are looked for in the cells (runs of `CELL`
ids) that have the likeliest tokens: as many of them as are likely enough, and no more than `CELLS`. Where these tell
what the filters keep, the token is the one that `sample` samples, to the bit: the thresholds are the same and the sums
are of integers. Where they do not, the answer is `UNDECIDED`, and `sample` has to be asked.
"""

import math
from typing import Any

from workers.sampling.fixed_point import FAR, WEIGHT_ONE, distances, is_finite, steps_of, weights_of
from workers.sampling.noise import Array, noise
from workers.sampling.sample import filtered, mass_of, sample_at
from workers.sampling.vocabulary_blocks import BLOCK, best_of, blocks_of, fold, sum_of, take

CELL = 16
CELLS = 256
UNDECIDED = -2
_LANES = CELL * CELLS
_GROUP = 32
"""Cells of a group, in the search for the chosen ones."""
_SHIFTS = (17, 13, 9, 5)
"""Of the digits, of four bits, in which the least likely step is found: to a 2048th of a halving."""


def narrow(
    xp: Any,
    logits: Array,
    temperature: Array,
    top_k: Array,
    top_p: Array,
    min_p: Array,
    seed_low: Array,
    seed_high: Array,
    position: Array,
) -> Array:
    """The tokens of `sample` with the same arguments, or `UNDECIDED`: int32 [B]."""
    cells = fold(xp, logits, CELL, -math.inf)
    maxima, best = best_of(xp, cells)
    nearest = steps_of(xp, distances(xp, maxima[:, :, None], best), temperature)[:, :, 0]
    within, chosen, complete = _choose(xp, nearest)
    distance = distances(xp, _lanes(xp, cells, chosen), best)
    steps = steps_of(xp, distance, temperature)

    blocks = blocks_of(xp, logits)
    sums = sum_of(xp, weights_of(xp, steps_of(xp, distances(xp, blocks, best), temperature)), 2)
    mass = mass_of(xp, sums[:, :, None])
    kept = filtered(xp, distance, temperature, top_k, top_p, min_p, mass)
    inside = (steps <= within[:, None, None]).astype(xp.uint32)
    share = mass_of(xp, weights_of(xp, steps) * inside)
    count = sum_of(xp, sum_of(xp, inside, 2), 1)
    decided = complete & _decided(xp, within, count, share >= top_p * mass, top_k, top_p, min_p)

    def fetch(block: Array) -> Array:
        lanes = distances(xp, take(xp, blocks, block)[:, None], best)
        return weights_of(xp, steps_of(xp, lanes, temperature))[:, 0]

    bits = noise(xp, seed_low, seed_high, position)
    plain = sample_at(xp, sums, fetch, bits)
    sampled = _token(xp, chosen, sample_at(xp, sum_of(xp, kept, 2), lambda block: take(xp, kept, block), bits))
    highest = _token(xp, chosen, _first_lane(xp, distance))
    free = (top_k <= 0) & (top_p >= 1.0) & (min_p <= 0.0)
    token = xp.where(free, plain, xp.where(decided, sampled, UNDECIDED))
    token = xp.where((temperature <= 0.0) | (top_k == 1), highest, token)
    return xp.where(is_finite(best), token, -1).astype(xp.int32)


def _decided(xp: Any, within: Array, count: Array, enough: Array, top_k: Array, top_p: Array, min_p: Array) -> Array:
    """Where all that the filters keep is among the tokens of at most `within` steps, of which there are `count`.

    `enough` says where those have the share top_p of the mass of all.
    """
    by_top_k = (top_k > 0) & (top_k <= count.astype(xp.int32))
    by_top_p = (top_k <= 0) & (top_p < 1.0) & enough
    least = (min_p * WEIGHT_ONE).astype(xp.uint32)
    by_min_p = (weights_of(xp, within + 1) < least) & ((top_k <= 0) | (top_p >= 1.0))
    return by_top_k | by_top_p | by_min_p | (within >= FAR)


def _choose(xp: Any, nearest: Array) -> tuple[Array, Array, Array]:
    """The cells with a token of at most `within` steps: those steps [B], the cells in order, int32 [B, CELLS] with -1
    where there are no more, and whether these are all, bool [B]; from the steps of each cell's likeliest, [B, n]."""
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
    """Sums of [B, n, m] along the last axis, which is short, each with those before it."""
    indices = xp.arange(values.shape[2], dtype=xp.int32)
    triangle = (indices[:, None] >= indices[None, :]).astype(xp.uint32)
    return sum_of(xp, values[:, :, None, :] * triangle[None, None], 3)


def _lanes(xp: Any, cells: Array, chosen: Array) -> Array:
    """The logits of the chosen cells, -inf for those that are none: [B, n, CELL], [B, CELLS] -> [B, n, BLOCK]."""
    lanes = xp.take_along_axis(cells, xp.maximum(chosen, 0)[:, :, None], axis=1)
    lanes = xp.where((chosen >= 0)[:, :, None], lanes, -math.inf).astype(xp.float32)
    return lanes.reshape(cells.shape[0], _LANES // BLOCK, BLOCK)


def _token(xp: Any, chosen: Array, lane: Array) -> Array:
    """The id of a lane of the chosen cells: int32 [B]."""
    return xp.take_along_axis(chosen, (lane // CELL)[:, None], axis=1)[:, 0] * CELL + lane % CELL


def _first_lane(xp: Any, distance: Array) -> Array:
    """The first lane with the highest logit: int32 [B]."""
    flat = distance.reshape(distance.shape[0], _LANES)
    lanes = xp.arange(_LANES, dtype=xp.int32)[None, :]
    return xp.min(xp.where(flat <= 0.0, lanes, _LANES - 1), axis=1).astype(xp.int32)
