"""Scores of pairs of texts, from what workers have computed: the scores themselves, or vectors."""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import sqrt
from operator import mul

import anyio.lowlevel

from gateway.generation.delta import OutputDelta
from gateway.generation.pooled.vectors import numbers, vectors

AT_ONCE = 32 * 1024
"""Numbers that are compared in one turn of the event loop, which takes a few milliseconds."""


@dataclass(slots=True)
class PairScores:
    """The scores of the pairs of one request, in their order. `prepare` computes them."""

    pairs: Sequence[tuple[int, int]] | None
    """The texts of each pair, of a model that makes vectors; None if workers score pairs."""
    values: list[float] = field(default_factory=list)

    async def prepare(self, deltas: Sequence[OutputDelta]) -> None:
        """Compute the scores. Others are served meanwhile."""
        found = vectors(deltas)
        if self.pairs is None:
            self.values = [numbers(found[index])[0] for index in sorted(found)]
            return
        left = Counter(chain.from_iterable(self.pairs))
        known: dict[int, array[float]] = {}
        numbers_done = 0
        for first, second in self.pairs:
            for index in (first, second):
                if index not in known:
                    known[index] = _unit(numbers(found[index]))
            self.values.append(_dot(known[first], known[second]))
            numbers_done += 2 * len(known[first])
            for index in (first, second):
                left[index] -= 1
                if not left[index]:  # a batch of documents has no vectors beside those of its pair
                    del known[index]
            if numbers_done >= AT_ONCE:
                numbers_done = 0
                await anyio.lowlevel.checkpoint()


def _dot(first: Sequence[float], second: Sequence[float]) -> float:
    total: float = sum(map(mul, first, second))
    return total


def _unit(vector: Sequence[float]) -> "array[float]":
    """Return the vector with length 1, in float64; that of zeros as it is."""
    length = sqrt(_dot(vector, vector)) or 1.0
    return array("d", [each / length for each in vector])
