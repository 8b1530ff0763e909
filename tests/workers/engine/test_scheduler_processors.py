"""Logits processors in the scheduler: each token of a sequence changes what may follow, and may end it."""

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ErrorCode
from protocol.request import Sampling
from tests.workers.engine.test_scheduler import refusal, request, scheduler
from workers.engine.logits_processors import AllowedTokens
from workers.engine.request import EngineRequest
from workers.engine.sequence import decode_row


def test_a_constraint_that_allows_no_first_token_is_refused() -> None:
    one = scheduler()
    only_end = EngineRequest(
        1, (5,), eos=frozenset({2}), min_tokens=1, max_tokens=4, constraint=lambda: AllowedTokens([2], 100)
    )
    assert refusal(one, only_end) == (ErrorCode.INVALID, "constraint")
    assert one.idle


def test_each_token_changes_the_penalties_of_the_next() -> None:
    one = scheduler()
    one.submit(request(1, 5, sampling=Sampling(frequency_penalty=0.5)), 0.0)
    one.admit(0.0)
    (work,) = one.next_call()
    one.prefilled(work)
    for times in (1, 2):
        one.accept(work.sequence, 42)
        edits = decode_row(work.sequence).sample.edits
        assert edits is not None
        assert (edits.tokens.tolist(), edits.minus.tolist()) == ([42], [0.5 * times])


def test_a_sequence_stops_when_its_constraint_allows_no_further_token() -> None:
    class Once:
        """Constraint that allows one token."""

        def __init__(self) -> None:
            self.words = np.array([1 << 7], np.uint32)

        def accept(self, token: int) -> None:
            self.words = np.zeros(1, np.uint32)

        def mask(self) -> NDArray[np.uint32]:
            return self.words

    one = scheduler()
    one.submit(request(1, 5, constraint=Once), 0.0)
    one.admit(0.0)
    (work,) = one.next_call()
    one.prefilled(work)
    assert one.accept(work.sequence, 7) == "stop"
