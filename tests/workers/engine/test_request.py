"""Checks of requests: each bound, on both of its sides."""

import math
from typing import Any

import pytest

from protocol.bounds import (
    MAX_BIAS,
    MAX_BIASES,
    MAX_PENALTY,
    MAX_REPETITION,
    MAX_SEED,
    MAX_TEMPERATURE,
    MAX_TOP_K,
    MAX_TOP_LOGPROBS,
    MIN_REPETITION,
)
from protocol.errors import ErrorCode
from protocol.request import Bias, Sampling
from workers.engine.request import EngineRequest, RequestRefused, check, check_sampling, check_score

VOCAB, CONTEXT = 100, 32
BOUNDS: list[tuple[str, tuple[Any, ...], tuple[Any, ...]]] = [
    ("temperature", (0.0, MAX_TEMPERATURE), (-0.001, MAX_TEMPERATURE + 0.001, math.nan)),
    ("top_k", (0, MAX_TOP_K), (-1, MAX_TOP_K + 1)),
    ("top_p", (0.001, 1.0), (0.0, 1.001, math.nan)),
    ("min_p", (0.0, 1.0), (-0.001, 1.001, math.nan)),
    ("seed", (0, MAX_SEED), (-1, MAX_SEED + 1)),
    ("presence_penalty", (-MAX_PENALTY, MAX_PENALTY), (-MAX_PENALTY - 0.001, MAX_PENALTY + 0.001, math.nan)),
    ("frequency_penalty", (-MAX_PENALTY, MAX_PENALTY), (-MAX_PENALTY - 0.001, MAX_PENALTY + 0.001, math.nan)),
    ("repetition_penalty", (MIN_REPETITION, MAX_REPETITION), (MIN_REPETITION / 2, MAX_REPETITION + 0.001, math.nan)),
    ("logprobs", (None, 0, MAX_TOP_LOGPROBS), (-1, MAX_TOP_LOGPROBS + 1)),
]


def refusal(asked: EngineRequest) -> tuple[ErrorCode, str]:
    with pytest.raises(RequestRefused) as refused:
        check(asked, VOCAB, CONTEXT)
    return refused.value.code, refused.value.field


@pytest.mark.parametrize(("field", "good", "bad"), BOUNDS, ids=[field for field, _, _ in BOUNDS])
def test_sampling_has_bounds(field: str, good: tuple[Any, ...], bad: tuple[Any, ...]) -> None:
    for value in good:
        check_sampling(Sampling(**{field: value}))
    for value in bad:
        with pytest.raises(RequestRefused) as refused:
            check_sampling(Sampling(**{field: value}))
        assert (refused.value.code, refused.value.field) == (ErrorCode.INVALID, field), value


def test_biases_have_bounds() -> None:
    most = tuple(Bias(token, 1.0) for token in range(MAX_BIASES))
    check_sampling(Sampling(logit_bias=(Bias(1, MAX_BIAS), Bias(2, -MAX_BIAS))))
    check_sampling(Sampling(logit_bias=most))
    for wrong in ((*most, Bias(MAX_BIASES, 1.0)), (Bias(1, MAX_BIAS + 1.0),), (Bias(1, 0.0), Bias(2, -MAX_BIAS - 1.0))):
        with pytest.raises(RequestRefused) as refused:
            check_sampling(Sampling(logit_bias=wrong))
        assert refused.value.field == "logit_bias"
    check(EngineRequest(1, (1,), Sampling(logit_bias=(Bias(VOCAB - 1, 1.0),))), VOCAB, CONTEXT)
    assert refusal(EngineRequest(1, (1,), Sampling(logit_bias=(Bias(VOCAB, 1.0),)))) == (
        ErrorCode.INVALID,
        "logit_bias",
    )


@pytest.mark.parametrize(("min_tokens", "max_tokens"), [(0, None), (9, None), (0, 1), (4, 4)])
def test_a_minimum_up_to_the_maximum_is_taken(min_tokens: int, max_tokens: int | None) -> None:
    check(EngineRequest(1, (1,), min_tokens=min_tokens, max_tokens=max_tokens), VOCAB, CONTEXT)


@pytest.mark.parametrize(("min_tokens", "max_tokens"), [(-1, None), (-1, 4), (5, 4)])
def test_another_minimum_is_refused(min_tokens: int, max_tokens: int | None) -> None:
    asked = EngineRequest(1, (1,), min_tokens=min_tokens, max_tokens=max_tokens)
    assert refusal(asked) == (ErrorCode.INVALID, "min_tokens")


@pytest.mark.parametrize(
    ("tokens", "code"),
    [
        ((), ErrorCode.INVALID),
        ((VOCAB,), ErrorCode.INVALID),
        ((-1,), ErrorCode.INVALID),
        ((1,) * (CONTEXT + 1), ErrorCode.CONTEXT),
    ],
)
def test_tokens_that_cannot_be_scored_are_refused(tokens: tuple[int, ...], code: ErrorCode) -> None:
    with pytest.raises(RequestRefused) as refused:
        check_score(tokens, VOCAB, CONTEXT)
    assert (refused.value.code, refused.value.field) == (code, "prompt")


def test_a_whole_context_can_be_scored() -> None:
    check_score((0, *(VOCAB - 1,) * (CONTEXT - 1)), VOCAB, CONTEXT)


def test_the_wrong_token_is_named() -> None:
    with pytest.raises(RequestRefused, match="prompt has token 100, the vocabulary has 100"):
        check(EngineRequest(1, (0, 99, 100, -1)), VOCAB, CONTEXT)
