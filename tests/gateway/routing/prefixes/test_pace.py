"""Means over the last measurements, and the cost of a row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.prefixes.pace import MEMORY, DecayedRatio, RowCost
from gateway.routing.prefixes.worker_load import Expected, WorkerLoad


def test_a_ratio_is_of_the_sums_and_forgets() -> None:
    ratio = DecayedRatio()
    assert ratio.value(7.0) == 7.0
    ratio.add(100, 1)
    ratio.add(100, 3)
    assert ratio.value(7.0) == pytest.approx(50, rel=0.02)
    for _ in range(10 * MEMORY):
        ratio.add(10, 1)
    assert ratio.value(7.0) == pytest.approx(10, rel=0.01)


def test_the_cost_of_a_row_is_the_slope() -> None:
    cost = RowCost()
    assert cost.value() == 0.0
    for _ in range(MEMORY):
        for rows in (1, 4, 8, 16):
            cost.add(rows, 0.020 + 0.001 * rows)
    assert cost.value() == pytest.approx(0.001, rel=0.2)


def test_many_small_batches_show_the_slope() -> None:
    cost = RowCost()
    for _ in range(MEMORY):
        for rows in (1, 2):
            cost.add(rows, 0.010 + 0.001 * rows)
    assert cost.value() == pytest.approx(0.001, abs=0.0005)


def test_batches_of_one_size_say_no_more_than_the_most_that_a_row_can_cost() -> None:
    cost = RowCost()
    for _ in range(5):
        cost.add(4, 0.020)
    assert cost.value() == pytest.approx(0.005)


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0, 10)), min_size=1, max_size=50))
def test_a_row_costs_something_between_nothing_and_its_share(measured: list[tuple[int, float]]) -> None:
    cost = RowCost()
    for rows, seconds in measured:
        cost.add(rows, seconds)
    assert 0.0 <= cost.value() <= max(seconds / rows for rows, seconds in measured) + 10


def test_pending_tokens_are_those_of_sequences_without_a_first_token() -> None:
    load = WorkerLoad()
    for number, uncached in ((1, 100.5), (2, 50.0)):
        load.place(number, Expected(0, 0, 0, 0, uncached))
    assert load.pending == 150.5
    assert load.take(1) is not None
    assert load.take(1) is None
    assert load.pending == 50.0
    load.place(3, Expected(0, 0, 0, 0, 1.0))
    load.clear()
    assert load.pending == 0.0
    assert load.take(2) is None
