"""Token budget: it follows measured costs, so that streams keep their rate and prompts run as fast as that allows."""

from typing import Any

import pytest

from workers.engine.scheduling.token_budget import DEFAULT_STEP_TOKENS, TokenBudget

SIZES = (32, 128, 512)


def measured(decode: float, **chunks: float) -> TokenBudget:
    budget = TokenBudget(SIZES, stretch=4.0)
    budget.record_decode(decode)
    for size, seconds in chunks.items():
        budget.record_prefill(int(size[1:]), seconds)
    return budget


def test_a_prompt_without_running_streams_gets_the_whole_budget() -> None:
    assert measured(0.01, c512=9.0).step_tokens(0) == DEFAULT_STEP_TOKENS


def test_the_budget_before_any_measurement_is_the_default() -> None:
    assert TokenBudget(SIZES).step_tokens(3) == DEFAULT_STEP_TOKENS
    assert TokenBudget(SIZES, max_tokens=7).step_tokens(3) == 7
    assert TokenBudget(SIZES, max_tokens=1).step_tokens(3) == 1


@pytest.mark.parametrize(
    ("chunks", "tokens"),
    [
        pytest.param({"c32": 0.08}, 32, id="the smallest chunk always runs"),
        pytest.param({"c32": 0.02}, 32, id="a chunk that fits once"),
        pytest.param({"c32": 0.01}, 96, id="a chunk that fits three times"),
        pytest.param({"c32": 0.02, "c128": 0.03}, 128, id="a larger one that fits exactly"),
        pytest.param({"c32": 0.02, "c128": 0.031}, 32, id="a larger one that does not"),
        pytest.param({"c32": 0.0005}, 512, id="one that was never run costs in proportion"),
        pytest.param({"c32": 0.0}, 512, id="what costs nothing"),
        pytest.param({"c32": 0.00001}, 512, id="never more than the most"),
    ],
)
def test_a_step_with_a_prompt_takes_four_times_as_long_at_most(chunks: dict[str, float], tokens: int) -> None:
    assert measured(0.01, **chunks).step_tokens(5) == 5 + tokens + 1


def test_any_stretch_above_one_is_taken() -> None:
    budget = TokenBudget(SIZES, stretch=1.25)
    budget.record_decode(0.01)
    budget.record_prefill(32, 0.00125)
    assert budget.step_tokens(5) == 5 + 64 + 1


def test_a_chunk_counts_as_the_size_that_covers_it() -> None:
    budget = TokenBudget(SIZES)
    budget.record_decode(0.01)
    budget.record_prefill(33, 0.03)
    budget.record_prefill(900, 5.0)
    assert budget.step_tokens(1) == 1 + 128 + 1


def test_one_outlier_changes_nothing() -> None:
    budget = measured(0.01, c32=0.02, c128=0.03)
    for _ in range(4):
        budget.record_decode(0.01)
        budget.record_prefill(128, 0.03)
    before = budget.step_tokens(2)
    budget.record_decode(3.0)
    budget.record_prefill(128, 60.0)
    assert budget.step_tokens(2) == before


@pytest.mark.parametrize(("options", "field"), [({"max_tokens": 0}, "max_tokens"), ({"stretch": 1.0}, "stretch")])
def test_invalid_bounds_are_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        TokenBudget(SIZES, **options)
