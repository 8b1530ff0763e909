"""The measured drain rate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.admission.drain_rate import MEMORY_S, DrainRate


@given(st.floats(0.05, 20.0), st.integers(20, 400))
def test_a_steady_rate_is_measured(per_second: float, count: int) -> None:
    rate = DrainRate()
    rate.start(100.0)
    for number in range(1, count + 1):
        rate.departed(100.0 + number / per_second)
    assert rate.per_second(100.0 + count / per_second) == pytest.approx(per_second, rel=0.4)


def test_nothing_is_known_before_the_first_departure() -> None:
    rate = DrainRate()
    rate.start(0.0)
    assert rate.per_second(10.0) == 0.0


def test_time_without_a_queue_does_not_count() -> None:
    rate = DrainRate()
    rate.start(0.0)
    for second in range(1, 11):
        rate.departed(float(second))
    rate.stop(10.0)
    before = rate.per_second(10.0)
    assert rate.per_second(5000.0) == before
    rate.start(5000.0)
    assert rate.per_second(5000.0) == before


def test_a_change_is_followed_within_a_few_time_constants() -> None:
    rate = DrainRate()
    rate.start(0.0)
    for second in range(1, 101):
        rate.departed(float(second))
    for number in range(1, 31):
        rate.departed(100.0 + number * MEMORY_S / 10)
    assert rate.per_second(100.0 + 3 * MEMORY_S) == pytest.approx(10 / MEMORY_S, rel=0.3)
