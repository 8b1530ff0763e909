"""DRY: the penalties are those of the definition, after every token, wherever a sequence is resumed."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ErrorCode
from protocol.request import Sampling
from tests.workers.engine.scheduler.test_scheduler import refusal, request, scheduler
from workers.engine.edits.dry import MAX_MATCH, MAX_PENALTY, NO_BREAKERS, Breakers, DryPenalty
from workers.engine.logits_processors import LogitsProcessors
from workers.engine.request import EngineRequest

VOCAB = 5


def by_definition(tokens: Sequence[int], sampling: Sampling, breakers: set[tuple[int, ...]]) -> dict[int, float]:
    """llama.cpp's rule, written down plainly: every earlier place, compared token by token."""
    window = list(tokens[-sampling.dry_range :] if sampling.dry_range else tokens)
    found: dict[int, float] = {}
    free = next(
        (
            count
            for count in range(len(tokens))
            if any(
                end >= len(each) and tuple(tokens[end - len(each) : end]) == each
                for each in breakers
                for end in [len(tokens) - count]
            )
        ),
        len(tokens),
    )
    for end in range(1, len(window)):
        length = 0
        while length < min(end, free) and window[end - 1 - length] == window[-1 - length]:
            length += 1
        if length >= sampling.dry_allowed_length:
            penalty = sampling.dry_multiplier * sampling.dry_base ** (length - sampling.dry_allowed_length)
            found[window[end]] = max(found.get(window[end], 0.0), penalty)
    return found


def breakers_of(texts: set[tuple[int, ...]]) -> Breakers:
    singles = np.zeros(VOCAB, np.bool_)
    singles[[text[0] for text in texts if len(text) == 1]] = True
    return Breakers(singles.tobytes(), tuple(text for text in texts if len(text) > 1))


token = st.integers(0, VOCAB + 1)  # some beyond the vocabulary of the breakers


@settings(max_examples=300, deadline=None)
@given(
    prompt=st.lists(token, min_size=1, max_size=20),
    answer=st.lists(token, max_size=30),
    base=st.sampled_from([1.0, 1.75, 3.0]),
    allowed=st.integers(1, 4),
    last=st.integers(0, 12),
    breakers=st.sets(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=3).map(tuple), max_size=2),
)
def test_penalties_follow_the_definition_after_every_token(
    prompt: list[int], answer: list[int], base: float, allowed: int, last: int, breakers: set[tuple[int, ...]]
) -> None:
    sampling = Sampling(dry_multiplier=0.8, dry_base=base, dry_allowed_length=allowed, dry_range=last)
    made = breakers_of(breakers)
    penalty = DryPenalty(sampling, prompt, made)
    for count in range(len(answer) + 1):
        tokens = prompt + answer[:count]
        expected = by_definition(tokens, sampling, breakers)
        assert penalty.penalties() == pytest.approx(expected)
        assert dict(DryPenalty(sampling, tokens, made).penalties()) == dict(penalty.penalties()), "where it resumes"
        if count < len(answer):
            penalty.accept(answer[count])


def test_a_repetition_is_penalized_more_the_longer_it_is() -> None:
    sampling = Sampling(dry_multiplier=2.0, dry_base=3.0, dry_allowed_length=2)
    penalty = DryPenalty(sampling, [1, 2, 3, 4, 9, 1], NO_BREAKERS)
    seen = []
    for token in (2, 3, 4):
        seen.append(dict(penalty.penalties()))
        penalty.accept(token)
    assert [*seen, dict(penalty.penalties())] == [{}, {3: 2.0}, {4: 6.0}, {9: 18.0}]


def test_long_repetitions_stay_finite() -> None:
    sampling = Sampling(dry_multiplier=100.0, dry_base=100.0, dry_allowed_length=1)
    penalty = DryPenalty(sampling, [7] * (3 * MAX_MATCH), NO_BREAKERS)
    assert dict(penalty.penalties()) == {7: MAX_PENALTY}
    assert math.isfinite(np.float32(MAX_PENALTY))
    for _ in range(2 * MAX_MATCH):
        penalty.accept(7)
    assert dict(penalty.penalties()) == {7: MAX_PENALTY}


def test_repetitions_count_up_to_a_bound_however_they_came_about() -> None:
    sampling = Sampling(dry_multiplier=1.0, dry_base=1.01, dry_allowed_length=1)
    tokens = [1, *range(2, MAX_MATCH + 60), 1, *range(2, MAX_MATCH + 60)]
    whole, grown = DryPenalty(sampling, tokens, NO_BREAKERS), DryPenalty(sampling, tokens[:1], NO_BREAKERS)
    for token in tokens[1:]:
        grown.accept(token)
    assert dict(whole.penalties()) == dict(grown.penalties()) == {1: pytest.approx(1.01 ** (MAX_MATCH - 1))}


def test_the_penalty_is_subtracted_with_those_of_counts() -> None:
    sampling = Sampling(dry_multiplier=2.0, dry_allowed_length=1, presence_penalty=1.0)
    processors = LogitsProcessors.of(EngineRequest(1, (3, 4, 3), sampling, resume=(4, 3)))
    assert processors is not None
    edits = processors.sample_spec(sampling, 5).edits
    assert edits is not None
    minus = dict(zip(edits.tokens.tolist(), edits.minus.tolist(), strict=True))
    assert minus == {4: pytest.approx(1 + 2.0 * 1.75**2), 3: 1.0}
    processors.accept(9)
    assert edits.minus.tolist() == list(minus.values()), "a sample does not depend on later tokens"


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("dry_multiplier", -0.1),
        ("dry_multiplier", 100.1),
        ("dry_multiplier", math.nan),
        ("dry_base", 0.9),
        ("dry_allowed_length", 0),
        ("dry_range", -1),
        ("typical_p", 0.0),
        ("typical_p", 1.1),
        ("typical_p", math.nan),
        ("xtc_probability", -0.1),
        ("xtc_probability", 1.1),
        ("xtc_threshold", 1.1),
        ("xtc_threshold", math.nan),
    ],
)
def test_parameters_out_of_bounds_are_named(field: str, wrong: float) -> None:
    given: dict[str, Any] = {field: wrong}
    assert refusal(scheduler(), request(1, 4, sampling=Sampling(**given))) == (ErrorCode.INVALID, field)
