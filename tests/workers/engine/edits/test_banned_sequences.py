"""Banned sequences: no answer contains one, wherever it is resumed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ErrorCode
from protocol.request import Sampling
from tests.workers.engine.scheduler.test_scheduler import refusal, request, scheduler
from workers.engine.edits.banned_sequences import BannedSequences
from workers.engine.logits_processors import AllowedTokens, LogitsProcessors
from workers.engine.request import EngineRequest

tokens = st.integers(0, 3)
sequences = st.lists(st.lists(tokens, min_size=1, max_size=4), min_size=1, max_size=6)


def by_definition(answer: list[int], sequences: list[list[int]]) -> set[int]:
    return {
        sequence[-1]
        for sequence in sequences
        if len(answer) >= len(sequence) - 1 and answer[len(answer) + 1 - len(sequence) :] == sequence[:-1]
    }


@given(sequences=sequences, answer=st.lists(tokens, max_size=12))
def test_exactly_the_tokens_that_complete_a_sequence_are_banned(sequences: list[list[int]], answer: list[int]) -> None:
    banned = BannedSequences(sequences)
    for count, token in enumerate(answer):
        assert set(banned.banned()) == by_definition(answer[:count], sequences)
        banned.accept(token)
    assert set(banned.banned()) == by_definition(answer, sequences)


def edited(processors: LogitsProcessors) -> dict[int, float]:
    edits = processors.sample_spec(Sampling(), 3).edits
    return {} if edits is None else dict(zip(edits.tokens.tolist(), edits.bias.tolist(), strict=True))


def test_a_resumed_answer_bans_as_the_first_run_did() -> None:
    bad = ((4,), (5, 6), (5, 6, 7))
    first = LogitsProcessors.of(EngineRequest(1, (5,), bad_sequences=bad))
    assert first is not None
    assert edited(first) == {4: -float("inf")}, "the prompt does not count"
    for count, token in enumerate((5, 6, 9, 5)):
        first.accept(token)
        resumed = LogitsProcessors.of(EngineRequest(1, (5,), bad_sequences=bad, resume=(5, 6, 9, 5)[: count + 1]))
        assert resumed is not None
        assert edited(resumed) == edited(first)
        assert set(edited(first)) == [{4, 6}, {4, 7}, {4}, {4, 6}][count]


def test_a_constraint_that_allows_banned_tokens_only_is_exhausted() -> None:
    allowed = AllowedTokens([2, 3], 32)
    processors = LogitsProcessors.of(
        EngineRequest(1, (5,), bad_sequences=((2,), (3, 3)), constraint=allowed, resume=(9,))
    )
    assert processors is not None
    exhausted = [processors.exhausted]
    for token in (3, 9):
        processors.accept(token)
        exhausted.append(processors.exhausted)
    assert exhausted == [False, True, False]


@pytest.mark.parametrize("eos", [frozenset(), frozenset({99})])
def test_sequences_that_could_leave_no_token_are_refused(eos: frozenset[int]) -> None:
    bad = tuple((token,) if token % 2 else (0, token) for token in range(100 - len(eos)))
    asked = request(1, 4, eos=eos, min_tokens=len(eos), bad_sequences=bad)
    assert refusal(scheduler(), asked) == (ErrorCode.INVALID, "bad_words")
    scheduler().submit(replace(asked, bad_sequences=bad[1:]), 0.0)
    assert refusal(scheduler(), request(1, 4, bad_sequences=((),))) == (ErrorCode.INVALID, "bad_words")


def test_a_sequence_outside_of_the_vocabulary_is_left_out() -> None:
    one = scheduler()
    one.submit(request(1, 4, bad_sequences=((5, 100), (7,))), 0.0)
    one.admit(0.0)
    (work,) = one.next_call()
    assert work.sequence.request.bad_sequences == ((7,),)
