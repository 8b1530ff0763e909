"""Gate for rings of windows: where a slot can be continued, and its states, compared with a runner that has all rows.

For runners of one model with and without a ring, whose prefill calls have up to 32 rows and whose ring is shorter than
288 rows.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from protocol.request import Sampling
from workers.engine.runner import Chunk, DecodeRow
from workers.sampling.sample_spec import SampleSpec

RING_CONTEXT, RING_SLOTS = 320, 4
RING_TOKENS = tuple(int(token) for token in np.random.default_rng(5).integers(3, 500, RING_CONTEXT))
SPEC = SampleSpec(Sampling(), 0)


class Kept:
    """A runner for gates, which close it: it is only cleared."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def close(self) -> None:
        for slot in range(RING_SLOTS):
            self._runner.reset(slot)


def check_continuations(ring: Any, full: Any) -> None:
    """Check that a slot is continued where its windows have their rows, with the tokens of all rows, and refused where
    they do not."""
    for runner in (ring, full):
        for start in range(0, 288, 32):
            runner.prefill([Chunk(0, RING_TOKENS[start : start + 32], start, start)], [None])
    able = ring.capabilities
    lost = 288 - able.window_rows - able.rollback_rows
    first = lost + able.window_reach
    with pytest.raises(ValueError, match=f"start: {first - 1} rows of slot 0, whose first {lost} are lost"):
        ring.read_state(0, first - 1)
    ring.copy_prefix(0, 1, first - 1)
    with pytest.raises(ValueError, match=f"start: {first - 1} rows of slot 1, whose first {first - 1} are lost"):
        ring.prefill([Chunk(1, RING_TOKENS[first - 1 : first], first - 1, first - 1)], [SPEC])
    for target, length in ((1, first), (2, 288), (0, first + 7)):
        rows = [DecodeRow(target, RING_TOKENS[length + at], length + at, length + at, SPEC) for at in range(3)]
        tokens = []
        for runner in (ring, full):
            runner.copy_prefix(0, target, length)
            tokens.append(runner.decode(rows))
        assert tokens[0] == tokens[1]
    again = Chunk(1, RING_TOKENS[:9], 0, 0)
    assert ring.prefill([again], [SPEC]) == full.prefill([again], [SPEC])
    for slot in range(RING_SLOTS):
        ring.reset(slot)


def check_state(ring: Any, full: Any, length: int) -> None:
    """Check that a slot is continued by a snapshot after `length` rows, which its ring has lost, beside others and in
    place."""
    for start in range(0, 256, 32):
        ends = [start, length, start + 32] if start < length < start + 32 else [start, start + 32]
        for low, high in pairwise(ends):
            for runner in (ring, full):
                runner.prefill([Chunk(0, RING_TOKENS[low:high], low, low)], [None])
            if high == length:
                state = bytes(ring.read_state(0))
                assert state == bytes(ring.read_state(0, length))
                assert len(state) == ring.capabilities.state_bytes
    rows = bytes(ring.read_rows(0, 0, length))
    ring.write_rows(2, 0, rows)
    with pytest.raises(ValueError, match=f"start: {length} rows of slot 2, whose first {length} are lost"):
        ring.read_state(2)
    ring.copy_prefix(0, 1, length)
    ring.copy_prefix(0, 0, length)
    full.copy_prefix(0, 0, length)
    again = RING_TOKENS[length : length + 8]
    expected = full.prefill([Chunk(0, again, length, length)], [SPEC])
    for slot in range(3):
        ring.write_state(slot, state)
        assert bytes(ring.read_state(slot)) == state
        assert ring.prefill([Chunk(slot, again, length, length)], [SPEC]) == expected
        assert bytes(ring.read_rows(slot, 0, length)) == rows


def check_refusals(ring: Any) -> None:
    """Check that states of other slots and sizes are refused."""
    refused: Sequence[tuple[str, Any]] = (
        (f"slot: {RING_SLOTS} is not one of {RING_SLOTS}", lambda: ring.read_state(RING_SLOTS)),
        ("slot: -1 is not one", lambda: ring.write_state(-1, bytes(ring.capabilities.state_bytes))),
        ("state: 3 bytes, one of windows has", lambda: ring.write_state(0, b"abc")),
        ("length: 1 rows of slot 0, which has 0", lambda: ring.read_state(0, 1)),
    )
    for text, call in refused:
        with pytest.raises(ValueError, match=text):
            call()
