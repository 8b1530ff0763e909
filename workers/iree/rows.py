"""The rows of a step: which of them lie side by side in a graph, and their rotary angles."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workers.runner import Chunk


class Run(NamedTuple):
    """Rows of a chunk that lie side by side in a graph."""

    slot: int
    tokens: tuple[int, ...]
    start: int
    position: int
    place: int
    """Which of the call's last rows is the last of these; -1 is none."""


def runs_of(chunk: Chunk, place: int, most: int) -> list[Run]:
    """A chunk in runs of `most` rows, the last of which has its last row."""
    runs = []
    for at in range(0, len(chunk.tokens), most):
        part = chunk.tokens[at : at + most]
        ends = at + len(part) == len(chunk.tokens)
        runs.append(Run(chunk.slot, part, chunk.start + at, chunk.position + at, place if ends else -1))
    return runs


class Angles:
    """cos and sin of RoPE angles: computed once for the positions of a context, on demand beyond it."""

    def __init__(self, frequencies: NDArray[np.float32], factors: NDArray[np.float32], context: int) -> None:
        """`frequencies` and `factors` as `rope_frequencies` gives them, [angles] each."""
        self._frequencies = frequencies
        self._factors = factors
        self._cos, self._sin = self._compute(np.arange(context))

    def _compute(self, positions: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        angles = positions[..., None].astype(np.float32) * self._frequencies
        return np.cos(angles) * self._factors, np.sin(angles) * self._factors

    def at(self, positions: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """float32 [..., angles] for positions [...]."""
        if positions.max() < len(self._cos):
            return self._cos.take(positions, axis=0), self._sin.take(positions, axis=0)
        return self._compute(positions)
