"""Gate of an encoder's runner on any backend."""

from collections.abc import Callable

import numpy as np
import pytest

from protocol.request import Sampling
from tests.workers.tiny_encoders import LENGTHS, sequences
from workers.engine.encoders.encoder_runner import EncoderOnlyError
from workers.engine.runner import Chunk, DecodeRow, Runner
from workers.sampling.sample_spec import SampleSpec


def run_encoder_gate(runner: Runner) -> None:
    """The hidden states of a sequence have the same bits alone, in another slot, beside any others, and after others
    that were longer; a call may have more sequences than fit into one graph."""
    capabilities = runner.capabilities
    assert (capabilities.bidirectional, capabilities.hidden_width, capabilities.context) == (True, 32, 72)
    together = sequences()
    whole = runner.hidden(together)
    assert [rows.shape for rows in whole] == [(length, 32) for length in LENGTHS]
    assert all(rows.dtype == np.float32 and np.isfinite(rows).all() for rows in whole)
    for chunk, rows in zip(together, whole, strict=True):
        (alone,) = runner.hidden([Chunk(capabilities.slots - 1, chunk.tokens, 0, 0)])
        np.testing.assert_array_equal(alone, rows)
    many = [Chunk(slot, together[1 + slot % 2].tokens, 0, 0) for slot in range(20)]
    for slot, rows in enumerate(runner.hidden(many)):
        np.testing.assert_array_equal(rows, whole[1 + slot % 2])
    later = list(together[1].tokens)
    later[-1] += 1
    (changed,) = runner.hidden([Chunk(0, tuple(later), 0, 0)])
    assert not np.array_equal(changed[0], whole[1][0]), "the first token attends to the last one"


REFUSED: dict[str, Chunk] = {
    "later-start": Chunk(0, (5,), 1, 0),
    "later-position": Chunk(0, (5,), 0, 1),
    "no-slot": Chunk(64, (5,), 0, 0),
    "no-tokens": Chunk(0, (), 0, 0),
    "other-vocabulary": Chunk(0, (120,), 0, 0),
    "segments-of-others": Chunk(0, (5, 6), 0, 0, token_types=(0,)),
    "third-segment": Chunk(0, (5, 6), 0, 0, token_types=(0, 2)),
    "too-long": Chunk(0, (5,) * 73, 0, 0),
}
"""Chunks that an encoder with 72 positions and two segments does not take."""


def run_refusals(runner: Runner) -> None:
    """Bad chunks are refused by the field; calls that an encoder has no use for raise an error of their own."""
    for chunk in REFUSED.values():
        with pytest.raises(ValueError, match=r"^(slot|start|tokens|token_types): "):
            runner.hidden([chunk])
    with pytest.raises(ValueError, match="one sequence a slot"):
        runner.hidden([Chunk(0, (5,), 0, 0), Chunk(0, (6,), 0, 0)])
    spec = SampleSpec(Sampling(), 1)
    calls: list[Callable[[], object]] = [
        lambda: runner.prefill([Chunk(0, (5,), 0, 0)], [None]),
        lambda: runner.decode([DecodeRow(0, 5, 0, 0, spec)]),
        lambda: runner.logits(Chunk(0, (5,), 0, 0)),
        lambda: runner.copy_prefix(0, 1, 1),
        lambda: runner.read_rows(0, 0, 1),
    ]
    for call in calls:
        with pytest.raises(EncoderOnlyError, match="encoder"):
            call()
    runner.reset(0)
    with pytest.raises(ValueError, match="slot"):
        runner.reset(64)
