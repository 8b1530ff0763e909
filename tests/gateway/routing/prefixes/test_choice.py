"""The choice between a less loaded worker and one that holds more of a prompt."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.prefixes.choice import LEAST_TOKENS, WorkerOption, choose

IDLE = WorkerOption(live=0, slots=8, saved=0, pending=0, prefill_rate=1000)
OPTIONS = st.builds(
    WorkerOption,
    live=st.integers(0, 12),
    slots=st.integers(1, 8),
    saved=st.floats(0, 1000),
    pending=st.floats(0, 5000),
    prefill_rate=st.floats(10, 10_000),
    turn_s=st.floats(0, 10),
    crowding_s=st.floats(0, 1),
)


def holds(saved: float, **fields: Any) -> WorkerOption:
    return replace(IDLE, saved=saved, **fields)


def test_the_worker_that_holds_the_prompt_is_chosen() -> None:
    assert choose([IDLE, holds(200), holds(900), holds(500)], 1000) == 2


@pytest.mark.parametrize(("saved", "chosen"), [(LEAST_TOKENS - 1, 0), (LEAST_TOKENS, 1)])
def test_few_tokens_are_no_reason(saved: int, chosen: int) -> None:
    assert choose([IDLE, holds(saved)], 1000) == chosen
    assert choose([holds(100), holds(100 + saved)], 1000) == chosen


@pytest.mark.parametrize(("pending", "chosen"), [(899, 1), (901, 0)])
def test_a_worker_with_a_longer_expected_wait_loses(pending: int, chosen: int) -> None:
    """900 tokens that are saved are worth a wait for 900 tokens of others, and no more."""
    assert choose([IDLE, holds(900, pending=pending)], 1000) == chosen


@pytest.mark.parametrize(("rate", "chosen"), [(112, 1), (110, 0)])
def test_a_slow_worker_has_to_save_more(rate: int, chosen: int) -> None:
    """The one computes 1000 tokens in a second, the other one the last 110."""
    assert choose([IDLE, holds(890, prefill_rate=rate)], 1000) == chosen


@pytest.mark.parametrize(("crowding_s", "chosen"), [(0.44, 1), (0.46, 0)])
def test_a_fuller_batch_delays_the_answer(crowding_s: float, chosen: int) -> None:
    one, other = replace(IDLE, crowding_s=crowding_s), holds(900, live=2, crowding_s=crowding_s)
    assert choose([one, other], 1000) == chosen


@pytest.mark.parametrize(("slots", "live", "chosen"), [(16, 8, 1), (16, 9, 0), (4, 2, 1), (4, 3, 0), (1, 1, 1)])
def test_no_worker_becomes_a_hot_spot(slots: int, live: int, chosen: int) -> None:
    """However much it saves, it has half of its slots more sequences than the least loaded one at most."""
    assert choose([replace(IDLE, slots=slots), holds(1e6, slots=slots, live=live)], 1e6) == chosen


@pytest.mark.parametrize(("live", "chosen"), [(8, 1), (9, 0)])
def test_among_full_workers_none_gets_more_than_the_least_loaded(live: int, chosen: int) -> None:
    assert choose([replace(IDLE, live=8), holds(1e6, live=live)], 1e6) == chosen


def test_the_turns_of_those_that_wait_for_a_slot_count() -> None:
    slow, fast = replace(IDLE, live=8, turn_s=80.0), replace(IDLE, live=8, turn_s=1.0)
    assert slow.seconds(0) - fast.seconds(0) == pytest.approx((80 - 1) / 8)


@given(st.lists(OPTIONS, min_size=1, max_size=6), st.floats(0, 5000))
def test_what_is_chosen_is_never_worse_than_the_least_loaded(options: list[WorkerOption], prompt: float) -> None:
    chosen = options[choose(options, prompt)]
    assert chosen.seconds(prompt) <= options[0].seconds(prompt)
    assert chosen is options[0] or (chosen.live <= options[0].most_live() and chosen.saved > options[0].saved)


@given(st.lists(OPTIONS, min_size=1, max_size=6), st.floats(0, 5000))
def test_without_prefixes_the_least_loaded_is_chosen(options: list[WorkerOption], prompt: float) -> None:
    assert choose([replace(each, saved=0.0) for each in options], prompt) == 0
