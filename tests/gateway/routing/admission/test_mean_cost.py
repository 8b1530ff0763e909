"""The mean cost of turns."""

import pytest

from gateway.routing.admission.mean_cost import MEMORY, MeanCost


def test_the_first_turns_count_alike_and_old_ones_are_forgotten() -> None:
    cost = MeanCost()
    assert cost.value() is None
    for each in (10.0, 20.0, 60.0):
        cost.add(each)
    assert cost.value() == pytest.approx(30.0)
    for _ in range(10 * MEMORY):
        cost.add(5.0)
    assert cost.value() == pytest.approx(5.0, rel=0.01)


def test_turns_that_cost_nothing_tell_nothing() -> None:
    cost = MeanCost()
    cost.add(0.0)
    assert cost.value() is None
