"""Restart policies are pure: times in, decisions out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.process.exit_cause import Origin
from actors.supervision.messages import Loss
from actors.supervision.restart_policy import (
    MAX_FAILED_STARTS,
    MAX_REMEMBERED,
    FailureRecord,
    GiveUp,
    Restart,
    RestartPolicy,
)

TIMES = st.lists(st.floats(0, 1e6), min_size=1, max_size=40).map(sorted)
POLICIES = st.builds(
    RestartPolicy,
    max_failures=st.integers(1, 20) | st.none(),
    window_s=st.floats(0.1, 1e4),
    first_delay_s=st.floats(0, 5),
    max_delay_s=st.floats(5, 60),
)
DIED, KILLED = Loss("it died"), Loss("it was killed", Origin.OUTSIDE)
SHORTAGE, LASTING = Loss("no room", shortage=True), Loss("no such device", lasting=True)
SHORTAGE_S = 7.0


class Record(FailureRecord):
    """A worker that is always ready before it fails, unless the test says otherwise."""

    def __init__(self, policy: RestartPolicy, *, joins: bool = False) -> None:
        super().__init__(policy, SHORTAGE_S, joins=joins)

    def died(self, now: float, number: int) -> Restart | GiveUp:
        self.ready(number)
        return self.failed(DIED, number, now)


def test_delays_double_up_to_the_cap_and_then_it_ends() -> None:
    record = Record(RestartPolicy(max_failures=6, window_s=100, first_delay_s=1, max_delay_s=5))
    assert [record.died(float(second), second + 1) for second in range(6)] == [
        Restart(1),
        Restart(2),
        Restart(4),
        Restart(5),
        Restart(5),
        GiveUp("failed 6 times within 100 s"),
    ]


def test_a_local_worker_waits_at_most_two_seconds_before_it_is_given_up() -> None:
    """`docs/operations/high-availability.md` states these delays."""
    decisions = [RestartPolicy().decide([0.0] * count, 0.0) for count in range(1, 6)]
    assert decisions == [*map(Restart, (0.25, 0.5, 1.0, 2.0)), GiveUp("failed 5 times within 300 s")]


def test_failures_leave_the_window() -> None:
    record = Record(RestartPolicy(max_failures=2, window_s=10, first_delay_s=1, max_delay_s=5))
    assert record.died(0.0, 1) == Restart(1)
    assert record.died(10.0, 2) == Restart(1)
    assert isinstance(record.died(19.9, 3), GiveUp)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_failures", 0),
        ("max_failures", MAX_REMEMBERED + 1),
        ("window_s", 0.0),
        ("window_s", float("nan")),
        ("first_delay_s", -1.0),
        ("first_delay_s", RestartPolicy().max_delay_s + 1),
    ],
)
def test_fields_out_of_range_are_named(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        RestartPolicy(**{field: value})  # type: ignore[arg-type]


def test_a_worker_may_fail_64_times_before_it_is_given_up() -> None:
    record = Record(RestartPolicy(max_failures=64))
    decisions = [record.died(0.0, number) for number in range(1, 65)]
    assert all(isinstance(each, Restart) for each in decisions[:-1])
    assert decisions[-1] == GiveUp("failed 64 times within 300 s")
    with pytest.raises(ValueError, match="max_failures: 65 is not between 1 and 64"):
        RestartPolicy(max_failures=65)


@given(policy=POLICIES, failures=TIMES)
def test_decisions_are_pure_and_in_bounds(policy: RestartPolicy, failures: list[float]) -> None:
    now = failures[-1]
    decision = policy.decide(failures, now)
    assert decision == policy.decide(list(failures), now)
    recent = [time for time in failures if now - time < policy.window_s]
    if isinstance(decision, Restart):
        assert policy.max_failures is None or len(recent) < policy.max_failures
        assert policy.first_delay_s <= decision.delay_s <= policy.max_delay_s
    else:
        assert policy.max_failures is not None
        assert len(recent) >= policy.max_failures


@given(policy=POLICIES, failures=TIMES)
def test_more_failures_never_mean_a_shorter_delay(policy: RestartPolicy, failures: list[float]) -> None:
    now = failures[-1]
    fewer, more = policy.decide(failures[1:] or failures, now), policy.decide(failures, now)
    if isinstance(fewer, Restart) and isinstance(more, Restart):
        assert more.delay_s >= fewer.delay_s
    assert isinstance(fewer, Restart) or not isinstance(more, Restart)


@given(policy=POLICIES, failures=TIMES)
def test_what_the_record_forgets_makes_no_difference(policy: RestartPolicy, failures: list[float]) -> None:
    record = Record(policy)
    times = [*failures, *([failures[-1]] * MAX_REMEMBERED)]
    for number, time in enumerate(times, 1):
        assert type(record.died(time, number)) is type(policy.decide(times[:number], time))


@given(policy=POLICIES, failures=TIMES, data=st.data())
def test_what_is_exempt_makes_no_difference(policy: RestartPolicy, failures: list[float], data: st.DataObject) -> None:
    exempt = data.draw(st.sets(st.integers(1, len(failures))))
    late = data.draw(st.sets(st.sampled_from(sorted(exempt)))) if exempt else set()
    record, counted = Record(policy), []
    for number, time in enumerate(failures, 1):
        if number in exempt - late:
            record.exempt(number)
        else:
            counted.append(time)
        assert record.died(time, number) == policy.decide(counted, time)
        if number in late:
            record.exempt(number)
            counted.pop()


def test_poison_requests_without_end_neither_use_up_the_restarts_nor_delay_them() -> None:
    """Each first death is exempt when the second one has shown which request caused both, before that is recorded."""
    record = Record(RestartPolicy(max_failures=3, first_delay_s=1))
    for first in range(1, 4 * MAX_REMEMBERED, 2):
        assert record.died(0.0, first) == Restart(1)
        record.exempt(first)
        record.exempt(first + 1)
        assert record.died(0.0, first + 1) == Restart(0)
    assert record.died(0.0, 1001) == Restart(1)
    assert record.died(0.0, 1002) == Restart(2)
    assert isinstance(record.died(0.0, 1003), GiveUp)


def test_kills_of_a_ready_worker_never_count() -> None:
    record = Record(RestartPolicy(max_failures=2, first_delay_s=1))
    for number in range(1, 10):
        record.ready(number)
        assert record.failed(KILLED, number, 0.0) == Restart(0)
    assert record.died(0.0, 10) == Restart(1)
    assert isinstance(record.died(0.0, 11), GiveUp)


ONCE_READY = [
    pytest.param(Origin.OUTSIDE, 5.0, id="killed"),
    pytest.param(Origin.UNKNOWN, 5.0, id="killed, and the system does not report by whom"),
    pytest.param(Origin.MEMORY, 30.0, id="killed for memory"),
]


@pytest.mark.parametrize(("origin", "longest_s"), ONCE_READY)
@pytest.mark.parametrize("joins", [False, True], ids=["local", "remote"])
def test_killed_starts_of_a_worker_that_was_ready_only_delay_the_next(
    origin: Origin, longest_s: float, joins: bool
) -> None:
    record = Record(RestartPolicy(), joins=joins)
    record.ready(1)
    killed = Loss("it was killed", origin)
    decisions = [record.failed(killed, number, 0.0) for number in range(2, 2 + 2 * MAX_REMEMBERED)]
    delays = [decision.delay_s for decision in decisions if isinstance(decision, Restart)]
    assert len(delays) == len(decisions), "never given up"
    assert delays[:5] == [0.25, 0.5, 1.0, 2.0, 4.0]
    assert set(delays[8:]) == {longest_s}
    record.ready(900)
    assert record.failed(KILLED, 900, 0.0) == Restart(0)
    assert record.failed(killed, 901, 0.0) == Restart(0.25), "in a row"


@pytest.mark.parametrize("origin", [Origin.OUTSIDE, Origin.UNKNOWN, Origin.MEMORY])
def test_killed_starts_of_a_worker_that_was_never_ready_are_given_up_with_a_reason(origin: Origin) -> None:
    record = Record(RestartPolicy())
    killed = Loss("it was killed", origin)
    decisions = [record.failed(killed, number, 0.0) for number in range(1, 1 + MAX_FAILED_STARTS)]
    assert decisions == [
        *map(Restart, (0.25, 0.5, 1.0, 2.0)),
        GiveUp("killed in 5 starts in a row, and never ready: see whether a memory limit or a watchdog ends it"),
    ]


def test_failed_starts_count_across_kills() -> None:
    record = Record(RestartPolicy(window_s=1e-9))
    record.ready(1)
    numbers = iter(range(2, 100))
    for _ in range(MAX_FAILED_STARTS - 1):
        assert isinstance(record.failed(DIED, next(numbers), 0.0), Restart)
        assert isinstance(record.failed(KILLED, next(numbers), 0.0), Restart)
    assert record.failed(DIED, next(numbers), 0.0) == GiveUp("failed 5 starts in a row")


def test_another_program_has_never_been_ready() -> None:
    record = Record(RestartPolicy())
    record.ready(1)
    record.changed(1)
    record.ready(1)  # the old one is still there
    record.forget()
    decisions = [record.failed(KILLED, number, 0.0) for number in range(2, 2 + MAX_FAILED_STARTS)]
    assert isinstance(decisions[-1], GiveUp)


def test_starts_that_keep_failing_are_given_up_though_the_window_forgets_them() -> None:
    record = Record(RestartPolicy(window_s=1e-9))
    for number in range(1, MAX_FAILED_STARTS):
        assert isinstance(record.failed(DIED, number, float(number)), Restart)
    record.died(10.0, 5)  # one that was ready: the next ones count anew
    for number in range(6, 5 + MAX_FAILED_STARTS):
        assert isinstance(record.failed(DIED, number, float(number)), Restart)
    assert record.failed(DIED, 20, 20.0) == GiveUp("failed 5 starts in a row")


def test_a_worker_that_served_is_tried_until_there_is_no_shortage() -> None:
    record = Record(RestartPolicy(max_failures=1))
    record.ready(1)
    assert [record.failed(SHORTAGE, number, 0.0) for number in range(2, 20)] == [Restart(SHORTAGE_S)] * 18
    assert isinstance(Record(RestartPolicy(max_failures=1)).failed(SHORTAGE, 1, 0.0), GiveUp), "one that never served"


def test_what_no_start_can_heal_is_given_up_at_once_but_by_the_machine_that_starts_it() -> None:
    assert Record(RestartPolicy()).failed(LASTING, 1, 0.0) == GiveUp("cannot be healed by a restart")
    remote = Record(RestartPolicy(max_failures=MAX_REMEMBERED, first_delay_s=1, max_delay_s=1), joins=True)
    assert [remote.failed(LASTING, number, 0.0) for number in range(1, 20)] == [Restart(1)] * 19


def test_one_that_begins_anew_has_all_its_tries() -> None:
    record = Record(RestartPolicy(max_failures=2, first_delay_s=1))
    assert record.failed(DIED, 1, 0.0) == Restart(1)
    record.forget()
    assert record.failed(DIED, 2, 0.0) == Restart(1)


def test_one_that_begins_anew_has_all_its_failed_starts() -> None:
    record = Record(RestartPolicy(window_s=1e-9))
    for number in range(1, 2 * MAX_FAILED_STARTS - 1):
        if number == MAX_FAILED_STARTS:
            record.forget()
        assert isinstance(record.failed(DIED, number, float(number)), Restart)
