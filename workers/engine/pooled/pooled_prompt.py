"""Prompts of which a vector is computed in place of an answer, from their hidden states."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Pooler(Protocol):
    """Makes a vector of the hidden states of one sequence, which come in chunks, in order."""

    def add(self, rows: NDArray[np.float32]) -> None:
        """Add the hidden states of the next tokens: float32 [tokens, hidden]."""

    def vector(self) -> NDArray[np.float32]:
        """Return the vector, float32 [numbers], when those of all tokens were added."""


@dataclass(frozen=True, slots=True)
class PooledPrompt:
    """A prompt of which a vector is computed."""

    make: Callable[[], Pooler]
    """Makes a pooler, each time that the sequence starts."""
    token_types: tuple[int, ...] | None = None
    """The segment of each token, see `workers.engine.runner.Chunk`."""
