"""Token buckets at their edges, on a clock of the test's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.transport.rate_limit import PeerBudget, PeerRate, TokenBucket


def test_a_burst_is_taken_at_once_and_no_more() -> None:
    bucket = TokenBucket(2.0, 3.0)
    assert [bucket.take(1.0, 10.0) for _ in range(4)] == [True, True, True, False]
    assert not bucket.take(1.0, 10.49)
    assert bucket.take(1.0, 10.5)
    assert not bucket.take(1.0, 10.5)
    assert [bucket.take(1.0, 1000.0) for _ in range(4)] == [True, True, True, False]


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = TokenBucket(1.0, 1.0)
    assert bucket.take(1.0, 5.0)
    assert not bucket.take(1.0, 4.0)
    assert bucket.take(1.0, 6.0)


@pytest.mark.parametrize(("rate", "burst"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (float("nan"), 1.0)])
def test_a_bucket_that_lets_nothing_through_is_refused(rate: float, burst: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        TokenBucket(rate, burst)


@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 4.0)), max_size=50))
def test_no_schedule_gets_more_than_the_burst_and_the_rate(steps: list[tuple[float, float]]) -> None:
    bucket, now, taken = TokenBucket(2.0, 3.0), 0.0, 0.0
    for wait, amount in steps:
        now += wait
        if bucket.take(amount, now):
            taken += amount
    assert taken <= 3.0 + 2.0 * now + 1e-6


def test_a_peer_has_a_bound_of_messages_and_one_of_bytes() -> None:
    rate = PeerRate(messages_per_s=1.0, messages_at_once=2.0, bytes_per_s=10.0, bytes_at_once=20.0)
    budget = PeerBudget(rate)
    assert budget.spend(10, 0.0) is None
    assert budget.spend(10, 0.0) is None
    assert budget.spend(0, 0.0) == "more than 1 messages a second"
    assert PeerBudget(rate).spend(20, 0.0) is None
    assert PeerBudget(rate).spend(21, 0.0) == "more than 10 bytes a second"


def test_a_message_of_many_frames_counts_as_many() -> None:
    rate = PeerRate(frames_per_s=1.0, frames_at_once=5.0)
    budget = PeerBudget(rate)
    assert budget.spend(1, 0.0, frames=4) is None
    assert budget.spend(1, 0.0, frames=2) == "more than 1 frames a second"


def test_what_is_earned_passes_but_no_more_than_the_burst_at_once() -> None:
    bucket = TokenBucket(rate=1.0, burst=4.0)
    assert bucket.take(4.0, now=0.0)
    bucket.earn(2.0)
    assert bucket.take(2.0, now=0.0)
    assert not bucket.take(0.5, now=0.0)
    bucket.earn(9.0)
    assert not bucket.take(4.5, now=0.0)
    assert bucket.take(4.0, now=0.0)
