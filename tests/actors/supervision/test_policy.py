"""Restart policies are pure: times in, decisions out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.supervision.policy import (
    MAX_REMEMBERED,
    Escalate,
    Exhausted,
    FailureRecord,
    GiveUp,
    NeverRestart,
    Restart,
    RestartPolicy,
)

TIMES = st.lists(st.floats(0, 1e6), min_size=1, max_size=40).map(sorted)
POLICIES = st.builds(
    RestartPolicy,
    max_failures=st.integers(1, 20),
    window_s=st.floats(0.1, 1e4),
    first_delay_s=st.floats(0, 5),
    max_delay_s=st.floats(5, 60),
    exhausted=st.sampled_from(Exhausted),
)


def test_delays_double_up_to_the_cap_and_then_it_ends() -> None:
    policy = RestartPolicy(max_failures=6, window_s=100, first_delay_s=1, max_delay_s=5)
    record = FailureRecord(policy)
    decisions = [record.failed(float(second), second) for second in range(6)]
    assert decisions == [
        Restart(1),
        Restart(2),
        Restart(4),
        Restart(5),
        Restart(5),
        GiveUp("failed 6 times within 100 s"),
    ]


def test_failures_leave_the_window() -> None:
    policy = RestartPolicy(max_failures=2, window_s=10, first_delay_s=1, max_delay_s=5)
    record = FailureRecord(policy)
    assert record.failed(0.0, 1) == Restart(1)
    assert record.failed(10.0, 2) == Restart(1)
    assert isinstance(record.failed(19.9, 3), GiveUp)


def test_what_follows_when_the_restarts_are_used_up() -> None:
    assert isinstance(RestartPolicy(max_failures=1).decide([0.0], 0.0), GiveUp)
    assert isinstance(RestartPolicy(max_failures=1, exhausted=Exhausted.ESCALATE).decide([0.0], 0.0), Escalate)
    assert isinstance(NeverRestart().decide([0.0], 0.0), GiveUp)
    assert isinstance(NeverRestart(escalate=True).decide([0.0], 0.0), Escalate)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_failures", 0),
        ("max_failures", MAX_REMEMBERED + 1),
        ("window_s", 0.0),
        ("window_s", float("nan")),
        ("first_delay_s", -1.0),
        ("first_delay_s", 31.0),
    ],
)
def test_fields_out_of_range_are_named(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        RestartPolicy(**{field: value})  # type: ignore[arg-type]


@given(policy=POLICIES, failures=TIMES)
def test_decisions_are_pure_and_in_bounds(policy: RestartPolicy, failures: list[float]) -> None:
    now = failures[-1]
    decision = policy.decide(failures, now)
    assert decision == policy.decide(list(failures), now)
    recent = [time for time in failures if now - time < policy.window_s]
    if isinstance(decision, Restart):
        assert len(recent) < policy.max_failures
        assert policy.first_delay_s <= decision.delay_s <= policy.max_delay_s
    else:
        assert len(recent) >= policy.max_failures
        assert isinstance(decision, Escalate) == (policy.exhausted is Exhausted.ESCALATE)


@given(policy=POLICIES, failures=TIMES)
def test_more_failures_never_mean_a_shorter_delay(policy: RestartPolicy, failures: list[float]) -> None:
    now = failures[-1]
    fewer, more = policy.decide(failures[1:] or failures, now), policy.decide(failures, now)
    if isinstance(fewer, Restart) and isinstance(more, Restart):
        assert more.delay_s >= fewer.delay_s
    assert isinstance(fewer, Restart) or not isinstance(more, Restart)


@given(policy=POLICIES, failures=TIMES)
def test_what_the_record_forgets_makes_no_difference(policy: RestartPolicy, failures: list[float]) -> None:
    record = FailureRecord(policy)
    times = [*failures, *([failures[-1]] * MAX_REMEMBERED)]
    for number, time in enumerate(times, 1):
        assert type(record.failed(time, number)) is type(policy.decide(times[:number], time))


@given(policy=POLICIES, failures=TIMES, data=st.data())
def test_what_was_pardoned_makes_no_difference(
    policy: RestartPolicy, failures: list[float], data: st.DataObject
) -> None:
    pardoned = data.draw(st.sets(st.integers(0, len(failures) - 1)))
    late = data.draw(st.sets(st.sampled_from(sorted(pardoned)))) if pardoned else set()
    record, counted = FailureRecord(policy), []
    for start, time in enumerate(failures):
        if start in pardoned - late:
            record.pardon(start)
        else:
            counted.append(time)
        assert record.failed(time, start) == policy.decide(counted, time)
        if start in late:
            record.pardon(start)
            counted.pop()


def test_culprits_without_end_neither_use_up_the_restarts_nor_delay_them() -> None:
    """Each first death is pardoned when the second one has shown whose both were, which is before it is recorded."""
    record = FailureRecord(RestartPolicy(max_failures=3, first_delay_s=1))
    for first in range(0, 4 * MAX_REMEMBERED, 2):
        assert record.failed(0.0, first) == Restart(1)
        record.pardon(first)
        record.pardon(first + 1)
        assert record.failed(0.0, first + 1) == Restart(0)
    assert record.failed(0.0, -1) == Restart(1)
    assert record.failed(0.0, -2) == Restart(2)
    assert isinstance(record.failed(0.0, -3), GiveUp)
