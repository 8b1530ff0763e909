"""Scores of pairs of texts, from what workers have computed: the scores themselves, or vectors."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from operator import mul

import anyio.lowlevel

from gateway.generation.delta import OutputDelta
from gateway.generation.pooled.vectors import numbers, vectors

AT_ONCE = 64
"""Pairs that are compared in one turn of the event loop: of vectors of 4,096 numbers they take 20 ms."""


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
        known: dict[int, tuple[float, ...]] = {}
        for place, (first, second) in enumerate(self.pairs):
            for index in (first, second):
                if index not in known:
                    known[index] = _unit(numbers(found[index]))
            self.values.append(_dot(known[first], known[second]))
            if place % AT_ONCE == AT_ONCE - 1:
                await anyio.lowlevel.checkpoint()


def _dot(first: Sequence[float], second: Sequence[float]) -> float:
    total: float = sum(map(mul, first, second))
    return total


def _unit(vector: tuple[float, ...]) -> tuple[float, ...]:
    """Return the vector with length 1; that of zeros as it is."""
    length = sqrt(_dot(vector, vector))
    return tuple(each / length for each in vector) if length else vector
