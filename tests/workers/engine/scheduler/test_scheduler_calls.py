"""Prefill calls, without a runner: which prompts share one, and its size."""

from collections.abc import Iterable

import pytest

from tests.workers.engine.harness.pool import admit, ask, run, scheduler
from workers.engine import prefix_match, slot_allocation
from workers.engine.prefix_match import CachedRows
from workers.engine.request import EngineRequest
from workers.engine.scheduler import Scheduler
from workers.engine.sequence import EngineSequence
from workers.engine.slot_allocation import SlotAllocator


def calls(one: Scheduler) -> list[list[tuple[int, int, int]]]:
    """Return all calls of a step, each as (stream, start, tokens) of its chunks."""
    out = []
    while call := one.next_call():
        out.append([(work.sequence.request.stream, work.chunk.start, len(work.chunk.tokens)) for work in call])
        for work in call:
            one.prefilled(work)
            if work.sample is not None:
                one.accept(work.sequence, 50)
    return out


def distinct(stream: int, length: int) -> EngineRequest:
    return ask(stream, tuple(range(10 * stream, 10 * stream + length)))


@pytest.mark.parametrize(
    ("block", "lengths", "expected"),
    [
        (1, (3, 2, 2), [[(0, 0, 3), (1, 0, 2), (2, 0, 2)]]),
        (1, (3, 2, 6), [[(0, 0, 3), (1, 0, 2), (2, 0, 3)], [(2, 3, 3)]]),
        (4, (3, 2, 6), [[(0, 0, 3), (1, 0, 2)], [(2, 0, 6)]]),
        (4, (5, 2, 6), [[(0, 0, 5)], [(1, 0, 2), (2, 0, 4)], [(2, 4, 2)]]),
        (1, (1, 1), [[(0, 0, 1), (1, 0, 1)]]),
    ],
)
def test_prompts_share_a_call_of_the_size_of_one_prompt(
    block: int, lengths: tuple[int, ...], expected: list[list[tuple[int, int, int]]]
) -> None:
    one = scheduler(4, block=block)
    for stream, length in enumerate(lengths):
        one.submit(distinct(stream, length), 0.0)
    admit(one)
    assert calls(one) == expected


def test_inexact_prompts_do_not_share_a_call() -> None:
    one = scheduler(4, exact=False)
    for stream in range(3):
        one.submit(distinct(stream, 2), 0.0)
    admit(one)
    assert calls(one) == [[(0, 0, 2)], [(1, 0, 2)], [(2, 0, 2)]]


def test_a_shared_call_stays_within_the_budget_and_splits_its_last_prompt() -> None:
    one = scheduler(4, step_tokens=8)
    for stream in range(3):
        one.submit(distinct(stream, 3), 0.0)
    admit(one)
    assert calls(one) == [[(0, 0, 3), (1, 0, 3)]], "each last chunk costs one more"
    one.step_tokens = 5
    one.admit(0.0)
    assert calls(one) == [[(2, 0, 3)]]


def test_prefixes_are_searched_for_the_prompts_that_fit_in_the_call_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search compares a prompt with every other one, so a step of many prompts would take long."""
    searched: list[int] = []
    search = SlotAllocator.find_prefix

    def find_prefix(this: SlotAllocator, sequence: EngineSequence, others: Iterable[EngineSequence]) -> tuple[int, int]:
        searched.append(sequence.request.stream)
        return search(this, sequence, others)

    monkeypatch.setattr(SlotAllocator, "find_prefix", find_prefix)
    one = scheduler(6)
    for stream in range(6):
        one.submit(distinct(stream, 4), 0.0)
    admit(one)
    assert calls(one) == [[(2 * pair, 0, 4), (2 * pair + 1, 0, 4)] for pair in range(3)]
    assert searched == list(range(6)), "each once"


def test_a_prompt_waits_for_one_before_it_whose_rows_it_can_take() -> None:
    one = scheduler(4, min_tokens=2)
    one.submit(ask(0, (1, 2, 3)), 0.0)
    one.submit(ask(1, (1, 2, 4)), 0.0)
    one.submit(ask(2, (9, 9, 9)), 0.0)
    one.submit(ask(3, (1, 2, 4), tenant="b"), 0.0)
    admit(one)
    assert calls(one) == [[(0, 0, 3)], [(1, 2, 1), (2, 0, 3), (3, 0, 3)]]


def test_a_prompt_is_compared_only_with_rows_that_may_be_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One look at a token tells of most others that they share too little, however many run."""
    compared = []

    def reusable(wanted: CachedRows, source: CachedRows, limit: int, *, exact_rows: bool) -> int:
        compared.append(source.tokens[0])
        return prefix_match.reusable(wanted, source, limit, exact_rows=exact_rows)

    monkeypatch.setattr(slot_allocation, "reusable", reusable)
    one = scheduler(8, min_tokens=8, step_tokens=999, kv_tokens=256)
    run(one, *(ask(stream, tuple(range(stream, stream + 12))) for stream in range(6)))
    compared.clear()
    (work,) = run(one, ask(9, (*range(2, 12), 77)))
    assert compared == [2]
    assert (work.copy is not None, work.chunk.position) == (True, 10)
    (work,) = run(one, ask(10, (2, 3, 4, 5, 6, 7, 8, 99)))
    assert compared == [2], "too short to share anything"
    assert work.copy is None
