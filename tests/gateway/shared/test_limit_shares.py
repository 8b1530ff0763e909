"""The shares of gateways in a limit, by their demand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metrics.key_collector import KeyUse
from gateway.shared.limit_shares import DECAY, EQUAL, Demand, wanted_share


def test_a_gateway_that_is_alone_has_all() -> None:
    assert wanted_share(0.0, []) == 1.0
    assert wanted_share(7.0, []) == 1.0


def test_shares_follow_the_demand_and_leave_each_gateway_a_part() -> None:
    assert wanted_share(0.0, [0.0]) == 0.5
    assert wanted_share(0.0, [9.0]) == EQUAL / 2
    assert wanted_share(9.0, [0.0]) == pytest.approx(1 - EQUAL / 2)
    assert wanted_share(3.0, [1.0]) == pytest.approx(EQUAL / 2 + 0.75 * (1 - EQUAL))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=8))
def test_all_shares_together_are_the_whole(demands: list[float]) -> None:
    shares = [wanted_share(own, demands[:number] + demands[number + 1 :]) for number, own in enumerate(demands)]
    assert sum(shares) == pytest.approx(1.0)
    assert min(shares) >= EQUAL / len(demands) * 0.999


def test_demand_counts_refused_requests_and_fades() -> None:
    demand = Demand()
    assert demand.update({"a": KeyUse(3, 2, 0, 0, 1)}) == {"a": 6.0}
    assert demand.update({"a": KeyUse(3, 2, 0, 0, 0)}) == {"a": pytest.approx(5 * DECAY)}
    assert demand.update({"b": KeyUse(1, 0, 0, 0, 0)}) == {"b": 1.0}, "a was removed"
