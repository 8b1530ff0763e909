"""Logits processors: edits follow their definition, and do not depend on where a sequence was resumed."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocol.bounds import MAX_BIASES
from protocol.errors import ErrorCode
from protocol.request import Bias, Sampling
from tests.workers.engine.harness.undrafted import Undrafted
from tests.workers.engine.scheduler.test_scheduler import refusal, request, scheduler
from workers.engine.logits_processors import AllowedTokens, LogitsProcessors
from workers.engine.request import EngineRequest
from workers.engine.sequence import decode_row
from workers.sampling.logit_edits import apply_edits, edit_calls
from workers.sampling.sample import needs_sampling
from workers.sampling.sample_spec import SampleSpec, with_masks

VOCAB = 40
EVERYTHING = Sampling(
    presence_penalty=0.5, frequency_penalty=-0.25, repetition_penalty=1.5, logit_bias=(Bias(3, 2.0), Bias(7, -100.0))
)


def processed(spec: SampleSpec, row: NDArray[np.float32]) -> NDArray[np.float32]:
    logits = row[None]
    for arrays in edit_calls([spec]):
        logits = apply_edits(np, logits, *arrays)
    changed: NDArray[np.float32] = logits[0]
    return changed


def by_definition(
    row: NDArray[np.float32], sampling: Sampling, prompt: tuple[int, ...], answer: tuple[int, ...]
) -> NDArray[np.float64]:
    out = row.astype(np.float64)
    for each in sampling.logit_bias:
        out[each.token] = row[each.token] + each.bias
    for token in set(prompt + answer):
        out[token] = out[token] / sampling.repetition_penalty if out[token] > 0 else out[token] * 1.5
    for token, count in Counter(answer).items():
        out[token] -= count * sampling.frequency_penalty + sampling.presence_penalty
    return out


tokens = st.lists(st.integers(0, VOCAB - 1), max_size=200).map(tuple)


@given(prompt=tokens, answer=tokens, split=st.integers(0, 200))
def test_edits_follow_the_definition_and_do_not_depend_on_where_a_sequence_was_resumed(
    prompt: tuple[int, ...], answer: tuple[int, ...], split: int
) -> None:
    row = np.random.default_rng(0).normal(size=VOCAB).astype(np.float32)
    results = []
    for resumed in (0, min(split, len(answer)), len(answer)):
        processors = LogitsProcessors.of(EngineRequest(1, (1, *prompt), EVERYTHING, resume=answer[:resumed]))
        assert processors is not None
        for token in answer[resumed:]:
            processors.accept(token)
        results.append(processed(processors.sample_spec(EVERYTHING, 9), row))
    np.testing.assert_allclose(results[0], by_definition(row, EVERYTHING, (1, *prompt), answer), rtol=1e-5, atol=1e-5)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_only_the_repetition_penalty_counts_the_prompt() -> None:
    row = np.ones(VOCAB, np.float32)
    penalized = Sampling(presence_penalty=1.0, frequency_penalty=1.0)
    counted = LogitsProcessors.of(EngineRequest(1, (5, 5, 6), penalized))
    assert counted is not None
    np.testing.assert_array_equal(processed(counted.sample_spec(penalized, 3), row), row)
    repeated = LogitsProcessors.of(EngineRequest(1, (5, 5, 6), Sampling(repetition_penalty=2.0)))
    assert repeated is not None
    assert np.flatnonzero(processed(repeated.sample_spec(Sampling(), 3), row) == 0.5).tolist() == [5, 6]


def test_a_plain_request_has_no_processors() -> None:
    assert LogitsProcessors.of(EngineRequest(1, (5,), Sampling(temperature=1.0, top_k=3, logprobs=4))) is None
    assert LogitsProcessors.of(EngineRequest(1, (5,), min_tokens=4)) is None  # nothing ends it
    assert LogitsProcessors.of(EngineRequest(1, (5,), min_tokens=0, eos=frozenset({9}))) is None


def test_a_sample_does_not_depend_on_later_tokens() -> None:
    sampling = Sampling(frequency_penalty=1.0)
    processors = LogitsProcessors.of(EngineRequest(1, (5,), sampling))
    assert processors is not None
    processors.accept(4)
    edits = processors.sample_spec(sampling, 2).edits
    assert edits is not None
    before = edits.minus.tolist()
    processors.accept(4)
    assert edits.minus.tolist() == before == [1.0]


def test_end_of_sequence_is_banned_until_min_tokens_and_then_has_its_bias_again() -> None:
    sampling = Sampling(logit_bias=(Bias(9, 3.0),))
    processors = LogitsProcessors.of(
        EngineRequest(1, (5,), sampling, eos=frozenset({9, 11}), resume=(1,), min_tokens=3)
    )
    assert processors is not None
    row = np.zeros(VOCAB, np.float32)
    seen = []
    for token in (2, 2, 2):
        logits = processed(processors.sample_spec(sampling, 1), row)
        seen.append((logits[9], logits[11]))
        processors.accept(token)
    assert seen == [(-math.inf, -math.inf), (-math.inf, -math.inf), (3.0, 0.0)]


def test_more_tokens_than_the_initial_table() -> None:
    sampling = Sampling(presence_penalty=1.0)
    processors = LogitsProcessors.of(EngineRequest(1, (5,), sampling, resume=tuple(range(1000))))
    assert processors is not None
    row = np.zeros(1001, np.float32)
    assert processed(processors.sample_spec(sampling, 1), row).tolist() == [-1.0] * 1000 + [0.0]


@pytest.mark.parametrize("count", [1, 64, 65, MAX_BIASES])
def test_as_many_biases_as_a_request_may_have(count: int) -> None:
    sampling = Sampling(logit_bias=tuple(Bias(token, token + 0.5) for token in range(count)))
    processors = LogitsProcessors.of(EngineRequest(1, (5,), sampling, eos=frozenset({0}), min_tokens=1))
    assert processors is not None
    logits = processed(processors.sample_spec(sampling, 1), np.zeros(MAX_BIASES + 1, np.float32))
    others = [0.0] * (MAX_BIASES + 1 - count)
    assert logits.tolist() == [-math.inf, *(token + 0.5 for token in range(1, count)), *others]


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 100])
def test_allowed_tokens_are_bits(vocab: int) -> None:
    allowed = [token for token in range(vocab) if token % 3 != 1]
    words = AllowedTokens(allowed, vocab).mask()
    assert words.dtype == np.uint32
    assert len(words) == -(-vocab // 32)
    assert [token for token in range(len(words) * 32) if int(words[token // 32]) >> token % 32 & 1] == allowed


@pytest.mark.parametrize("wrong", [[], [-1], [100]])
def test_allowed_tokens_are_some_of_the_vocabulary(wrong: list[int]) -> None:
    with pytest.raises(ValueError, match="vocabulary of 100"):
        AllowedTokens(wrong, 100)


class Countdown(Undrafted):
    """Constraint that allows one token less each time: 2, then 1, then 0, then none."""

    ended: bool | None = None

    def __init__(self) -> None:
        self.left = 3

    def accept(self, token: int) -> None:
        self.left -= 1

    def mask(self) -> NDArray[np.uint32]:
        return np.array([1 << self.left >> 1], np.uint32)


def test_a_constraint_has_seen_the_resumed_tokens_and_may_be_exhausted() -> None:
    countdown = Countdown()
    countdown.accept(2)
    processors = LogitsProcessors.of(EngineRequest(1, (5,), constraint=countdown, resume=(2,)))
    assert processors is not None
    mask = processors.sample_spec(Sampling(), 2).mask
    assert mask is not None
    assert mask.tolist() == [1 << 1]
    processors.accept(1)
    assert not processors.exhausted
    processors.accept(0)
    assert processors.exhausted


class Endless(Undrafted):
    """Constraint that knows that it has not ended, and counts its masks."""

    ended: bool | None = False

    def __init__(self) -> None:
        self.masks = 0

    def accept(self, token: int) -> None:
        """Has no effect."""

    def mask(self) -> NDArray[np.uint32]:
        self.masks += 1
        return np.array([0b1100], np.uint32)


def test_a_mask_is_computed_late_if_the_end_is_known_without_it() -> None:
    constraint = Endless()
    processors = LogitsProcessors.of(EngineRequest(1, (5,), constraint=constraint))
    assert processors is not None
    processors.accept(3)
    assert not processors.ended
    spec = processors.sample_spec(Sampling(), 2)
    assert (spec.mask, constraint.masks) == (None, 0)
    with pytest.raises(ValueError, match="late_mask"):
        needs_sampling([spec])
    (ready,) = with_masks([spec])
    assert ready.mask is not None
    assert (ready.mask.tolist(), constraint.masks) == ([0b1100], 1)
    (again,) = with_masks([processors.sample_spec(Sampling(), 2)])
    assert (again.mask is ready.mask, constraint.masks) == (True, 1)


def test_a_mask_is_not_late_beside_banned_tokens() -> None:
    """They could leave nothing of it."""
    constraint = Endless()
    request = EngineRequest(1, (5,), eos=frozenset({2, 3}), min_tokens=3, constraint=constraint)
    processors = LogitsProcessors.of(request)
    assert processors is not None
    processors.accept(4)
    assert processors.ended
    assert constraint.masks == 1


def test_a_banned_token_that_a_constraint_allows_can_be_sampled_after_the_minimum() -> None:
    allowed = AllowedTokens([2, 3], 32)
    request = EngineRequest(1, (5,), eos=frozenset({2}), min_tokens=1, constraint=allowed)
    processors = LogitsProcessors.of(request)
    assert processors is not None
    assert not processors.exhausted
    processors.accept(3)
    mask = processors.sample_spec(Sampling(), 2).mask
    assert mask is not None
    assert mask.tolist() == [1 << 2 | 1 << 3]


def test_a_constraint_that_allows_only_banned_tokens_is_exhausted() -> None:
    request = EngineRequest(1, (5,), eos=frozenset({2}), min_tokens=1, constraint=AllowedTokens([2], 3))
    processors = LogitsProcessors.of(request)
    assert processors is not None
    assert processors.exhausted


def test_a_constraint_that_allows_no_first_token_is_refused() -> None:
    one = scheduler()
    only_end = EngineRequest(
        1, (5,), eos=frozenset({2}), min_tokens=1, max_tokens=4, constraint=AllowedTokens([2], 100)
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

        ended: bool | None = None

        def __init__(self) -> None:
            self.words = np.array([1 << 7], np.uint32)

        def accept(self, token: int) -> None:
            self.words = np.zeros(1, np.uint32)

        def mask(self) -> NDArray[np.uint32]:
            return self.words

    one = scheduler()
    one.submit(request(1, 5, constraint=Once()), 0.0)
    one.admit(0.0)
    (work,) = one.next_call()
    one.prefilled(work)
    assert one.accept(work.sequence, 7) == "stop"
