"""What of a model's attention a runner lets read: the scores of sparse prefill are computed from it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.engine.runner import Chunk

LOOKED_ROWS = 8
"""Rows whose queries are read at once: one block of the prefill graphs for CPUs."""


@dataclass(frozen=True, slots=True)
class AttentionReader:
    """Reads the queries and keys of a runner's model. Used only by the runner's thread, between two calls."""

    layers: tuple[int, ...]
    """The layers that attend to the whole prompt."""
    queries: Callable[[Chunk], NDArray[np.float32]]
    """Computes up to `LOOKED_ROWS` rows like `Runner.prefill`, and returns their queries in each of `layers`, rotated
    and scaled: float32 [layers, rows, heads, lanes]. Raises `ValueError` as `check_chunks` does."""
    keys: Callable[[int, int, int], NDArray[np.float32]]
    """Returns the keys of the rows of a slot (the first argument) in a layer of the model (the second one) up to a row
    (the third one), rotated: float32 [KV heads, rows, lanes]."""
