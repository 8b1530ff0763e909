"""Log-probabilities of a sampled token and of the most likely ones, from the logits as the model gave them.

The device finds the most likely tokens, how far below the highest logit each is, and the mass of all tokens, in
integers: equal logits give equal reports on every backend and in every batch. The logarithm is taken on the host. With
`workers.sampling.fixed_point`'s rounding a log-probability is right to about 2 parts in 100,000.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from protocol.bounds import MAX_TOP_LOGPROBS, MIN_LOGPROB
from workers.sampling.fixed_point import FAR, OCTAVE, WEIGHT_ONE, distances, steps_of, weights_of
from workers.sampling.noise import Array
from workers.sampling.vocabulary_blocks import best_of, blocks_of, fold, limbs, sum_of

FANOUT = 16
"""Children of a node in the tree of maxima that the search goes down."""
TAIL = 12
"""Octaves below the highest from which weights are counted in units so many octaves finer."""


class RowLogprobs(Struct, frozen=True, gc=False):
    """Natural logarithms of probabilities by the model's own logits: of the sampled token and of the most likely
    ones."""

    logprob: float
    tokens: tuple[int, ...]
    """The most likely tokens, likeliest first, equal ones by their ids; `MAX_TOP_LOGPROBS` of them, or all."""
    logprobs: tuple[float, ...]


def report(xp: Any, logits: Array, tokens: Array) -> tuple[Array, Array, Array]:
    """What `decode_report` needs: logits float32 [B, V] and the sampled tokens int32 [B].

    Returns the ids of the most likely tokens, int32 [B, 20]; how far they, and the sampled one last, are below the
    highest logit, float32 [B, 21]; and the mass, uint32 [B, 4]: two limbs in units of 1 / WEIGHT_ONE of the most
    likely token, and two of what is far below it, in units 2**TAIL times finer.
    """
    top = most_likely(xp, logits, MAX_TOP_LOGPROBS)
    blocks = blocks_of(xp, logits)
    distance = distances(xp, blocks, best_of(xp, blocks)[1])
    flat = distance.reshape(distance.shape[0], distance.shape[1] * distance.shape[2])
    wanted = xp.concatenate([top, tokens[:, None].astype(xp.int32)], axis=1)
    return top, xp.take_along_axis(flat, xp.maximum(wanted, 0), axis=1), _mass(xp, distance)


def decode_report(
    ids: NDArray[np.int32], distance: NDArray[np.float32], mass: NDArray[np.uint32], vocab_size: int
) -> list[RowLogprobs]:
    """The report of each row, from the arrays of `report`."""
    return [_row(*row, vocab_size) for row in zip(ids.tolist(), distance.tolist(), mass.tolist(), strict=True)]


def _row(ids: Sequence[int], distance: Sequence[float], mass: Sequence[int], vocab_size: int) -> RowLogprobs:
    near, far = (mass[0] << 16) + mass[1], (mass[2] << 16) + mass[3]
    whole = math.log(near + far / (1 << TAIL)) - math.log(WEIGHT_ONE)
    logs = [max(-each - whole, MIN_LOGPROB) for each in distance]
    # A small vocabulary has fewer tokens than are looked for.
    real = [at for at, token in enumerate(ids) if token < vocab_size]
    return RowLogprobs(logs[-1], tuple(ids[at] for at in real), tuple(logs[at] for at in real))


def most_likely(xp: Any, logits: Array, count: int) -> Array:
    """The ids of the `count` highest logits, highest first, equal ones by id: [B, V] -> int32 [B, count].

    Ids from V on stand for what is not there. A node of the tree is the maximum of `FANOUT` below it: whatever is among
    the best is in one of the best nodes, so that each level compares few with few.
    """
    levels = [logits]
    while levels[-1].shape[1] > FANOUT * count:
        levels.append(xp.max(fold(xp, levels[-1], FANOUT, -math.inf), axis=2))
    top = levels.pop()
    ids = xp.arange(max(top.shape[1], count), dtype=xp.int32)[None, :] + xp.zeros((logits.shape[0], 1), dtype=xp.int32)
    short = count - top.shape[1]
    if short > 0:
        top = xp.pad(top, ((0, 0), (0, short)), constant_values=-math.inf)
    best = _highest(xp, top, ids, count)
    for level in reversed(levels):
        below = fold(xp, level, FANOUT, -math.inf)
        values = xp.take_along_axis(below, best[:, :, None], axis=1)
        ids = best[:, :, None] * FANOUT + xp.arange(FANOUT, dtype=xp.int32)[None, None, :]
        size = count * FANOUT
        best = _highest(xp, values.reshape(values.shape[0], size), ids.reshape(ids.shape[0], size), count)
    return best


def _highest(xp: Any, values: Array, ids: Array, count: int) -> Array:
    """The ids of the `count` highest values in order, equal ones by id: [B, m] both, by comparing all with all."""
    left, right = values[:, :, None], values[:, None, :]
    before = (right > left) | ((right == left) & (ids[:, None, :] < ids[:, :, None]))
    rank = xp.sum(before.astype(xp.int32), axis=2).astype(xp.int32)
    places = xp.arange(count, dtype=xp.int32)[None, :, None]
    return xp.sum(xp.where(rank[:, None, :] == places, ids[:, None, :], 0), axis=2).astype(xp.int32)


def _mass(xp: Any, distance: Array) -> Array:
    """The mass of all tokens as `report` has it."""
    ones = xp.ones((distance.shape[0],), dtype=xp.float32)
    steps = steps_of(xp, distance, ones, FAR + TAIL * OCTAVE)
    split = xp.array(TAIL * OCTAVE, dtype=xp.uint32)
    far = steps >= split
    # What is masked, or far beyond all counting, is at the last step: it weighs nothing.
    fine = weights_of(xp, xp.where(far, steps - split, FAR).astype(xp.uint32))
    coarse = weights_of(xp, xp.where(far, FAR, steps).astype(xp.uint32))
    parts = [part for values in (coarse, fine) for part in limbs(xp, sum_of(xp, values, 2), 1)]
    return xp.concatenate([part[:, None] for part in parts], axis=1)
