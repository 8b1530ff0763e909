"""Prefill calls of prompts whose hidden states are pooled."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workers.engine.runner import NotFiniteError, Runner
from workers.engine.sequence import EngineSequence, ScheduledChunk


def pool_chunks(runner: Runner, call: Sequence[ScheduledChunk]) -> None:
    """Compute the hidden states of the chunks of a call, and give them to the poolers of their sequences. Raises what
    the runner raises."""
    states = runner.hidden([scheduled.chunk for scheduled in call])
    if len(states) != len(call):
        raise RuntimeError(f"the runner returned hidden states of {len(states)} chunks for {len(call)}")
    for scheduled, rows in zip(call, states, strict=True):
        sequence = scheduled.sequence
        if sequence.pooler is None:
            assert sequence.request.pooled is not None
            sequence.pooler = sequence.request.pooled.make()
        if np.isfinite(rows).all():
            sequence.pooler.add(rows)
        else:
            sequence.pooler = NotFinitePooler()


class NotFinitePooler:
    """The pooler of a sequence with hidden states that are not finite: a result that leaves these out, or whose
    activation hides them, would be wrong."""

    def add(self, rows: NDArray[np.float32]) -> None:
        """Read nothing."""

    def vector(self) -> NDArray[np.float32]:
        """Raises `NotFiniteError`."""
        raise NotFiniteError


def finish_pooling(sequence: EngineSequence) -> None:
    """Set the vector of a sequence whose prompt is complete. Raises `NotFiniteError`."""
    assert sequence.pooler is not None
    vector = sequence.pooler.vector()
    if not np.isfinite(vector).all():
        raise NotFiniteError
    sequence.vector = vector.astype("<f4").tobytes()
