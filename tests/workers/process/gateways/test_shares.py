"""The shares of several gateways in one worker: numbers, turns, suspects, waits that end, and what each is shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from protocol.commands import Submit
from protocol.errors import ErrorCode, ProtocolError
from protocol.events import Delta, Failed, Finished, Gauges, PromptLogprobs, PromptToken, StartedStream, Step, Usage
from protocol.request import Limits
from protocol.scheduling import PriorityClass
from tests.actors.supervision.processes import submit
from workers.process.gateways.shares import MAX_WAITING, NoTurn, Shares

A, B = 0, 1


def two(slots: int = 2) -> Shares:
    shares = Shares(2)
    shares.slots = slots
    return shares


def taken(shares: Shares, now: float = 0.0) -> list[Submit]:
    """All that have a turn now."""
    found = []
    while (one := shares.take(now)) is not None:
        found.append(one)
    return found


def requests(shares: Shares, now: float = 0.0) -> list[str]:
    return [each.request for each in taken(shares, now)]


def of(gateway: str, stream: int, klass: PriorityClass = "normal", *, suspect: bool = False) -> Submit:
    return replace(submit(stream), request=f"{gateway}{stream}", priority_class=klass, suspect=suspect)


def fill(shares: Shares, gateway: int, name: str, count: int, first: int = 1) -> None:
    for stream in range(first, first + count):
        shares.add(gateway, of(name, stream), 0.0)


def test_one_gateway_keeps_its_numbers_and_never_waits() -> None:
    shares = Shares(1)
    fill(shares, 0, "a", 50, first=7)
    assert [each.stream for each in taken(shares)] == list(range(7, 57))
    step = Step((Delta(7, (1,)),), Gauges(reached=9))
    assert list(shares.split(step)) == [(0, step)]
    assert shares.gauges(0, step.gauges) is step.gauges
    end = Finished(7, "stop", Usage(1, 1))
    assert shares.ended(end) == (0, end)


def test_equal_numbers_of_two_gateways_are_two_sequences_on_the_worker() -> None:
    shares = two()
    shares.add(A, of("a", 5), 0.0)
    shares.add(B, of("b", 5), 0.0)
    first, second = taken(shares)
    assert first.stream != second.stream
    deltas = (Delta(first.stream, (1,), "x"), Delta(second.stream, (2,), "y"), Delta(99, (3,), "z"))
    step = Step(deltas, Gauges(), (StartedStream(second.stream, queue_us=3),))
    assert [(gateway, one.deltas, one.started) for gateway, one in shares.split(step)] == [
        (A, (Delta(5, (1,), "x"),), ()),
        (B, (Delta(5, (2,), "y"),), (StartedStream(5, queue_us=3),)),
    ]
    part = PromptLogprobs(second.stream, 0, (PromptToken(1, b"a"),))
    assert shares.prompt(part) == (B, replace(part, stream=5))
    assert shares.prompt(replace(part, stream=99)) is None
    assert shares.cancel(A, 5) == first.stream
    failed = Failed(second.stream, ErrorCode.STEP, "no")
    assert shares.ended(failed) == (B, Failed(5, ErrorCode.STEP, "no"))
    assert shares.ended(failed) is None
    assert (shares.live(A), shares.live(B)) == (True, False)


def test_a_gateway_that_fills_the_worker_does_not_keep_another_one_waiting() -> None:
    """The slots that become free go to the other one, until both have as many."""
    shares = two(slots=4)
    fill(shares, A, "a", 100)
    running = taken(shares)
    assert len(running) == 6, "the slots, and half as many"
    fill(shares, B, "b", 100)
    order = []
    for each in running:
        shares.end(each.stream)
        order += requests(shares)
    assert order == ["b1", "b2", "b3", "a7", "a8", "a9"], "then each gets its own"


@given(st.lists(st.tuples(st.sampled_from([A, B, 2]), st.integers(1, 5)), max_size=40), st.integers(1, 4))
def test_no_gateway_that_waits_has_fewer_sequences_than_one_that_got_a_turn(
    wanted: list[tuple[int, int]], slots: int
) -> None:
    shares = Shares(3)
    shares.slots = slots
    have, waiting = [0, 0, 0], [0, 0, 0]
    numbers = [0, 0, 0]
    running: list[int] = []
    for gateway, count in wanted:
        for _ in range(count):
            numbers[gateway] += 1
            shares.add(gateway, of(str(gateway), numbers[gateway]), 0.0)
            waiting[gateway] += 1
        if running:
            ended = shares.end(running.pop(0))
            assert ended is not None
            have[ended.gateway] -= 1
        while (one := shares.take(0.0)) is not None:
            got = int(one.request[0])
            assert have[got] == min(have[each] for each in range(3) if waiting[each])
            have[got] += 1
            waiting[got] -= 1
            running.append(one.stream)
        assert len(running) <= slots + max(1, slots // 2)
        assert not any(waiting) or len(running) == slots + max(1, slots // 2)
    assert len(set(running)) == len(running)


def test_an_urgent_sequence_goes_where_it_preempts_others_and_no_further() -> None:
    shares = two(slots=2)
    fill(shares, A, "a", 9)
    assert len(taken(shares)) == 3
    for stream in range(1, 5):
        shares.add(B, of("b", stream, "high"), 0.0)
    assert requests(shares) == ["b1", "b2"], "all slots, and no more"
    shares.add(A, of("a", 20, "low"), 0.0)
    assert requests(shares) == []


def test_suspects_of_two_gateways_do_not_run_together() -> None:
    shares = two(slots=4)
    shares.add(A, of("a", 1, suspect=True), 0.0)
    shares.add(B, of("b", 1, suspect=True), 0.0)
    shares.add(B, of("b", 2), 0.0)
    first, second = taken(shares)
    assert (first.request, second.request) == ("a1", "b2")
    assert shares.suspected() == {A}
    shares.end(first.stream)
    assert requests(shares) == ["b1"]
    assert shares.suspected() == {B}


def test_time_in_the_queue_counts() -> None:
    shares = two(slots=1)
    fill(shares, A, "a", 2)
    running = taken(shares)
    limits = Limits(deadline_ms=5000, queue_ms=3000)
    shares.add(B, replace(of("b", 1), limits=limits), 10.0)
    shares.end(running[0].stream)
    (one,) = taken(shares, 12.5)
    assert (one.limits.deadline_ms, one.limits.queue_ms) == (2500, 500)
    step = Step((Delta(one.stream, (1,)),), Gauges(), (StartedStream(one.stream, queue_us=7),))
    assert [each.started for _, each in shares.split(step)] == [(StartedStream(1, queue_us=2_500_007),)]
    end = shares.ended(Finished(one.stream, "stop", Usage(1, 1, queue_ms=4)))
    assert end == (B, Finished(1, "stop", Usage(1, 1, queue_ms=2504)))


@pytest.mark.parametrize(
    ("limits", "code"),
    [(Limits(deadline_ms=500), ErrorCode.DEADLINE), (Limits(queue_ms=500), ErrorCode.QUEUE_TIMEOUT)],
    ids=["deadline", "queue"],
)
def test_what_waits_for_too_long_ends(limits: Limits, code: ErrorCode) -> None:
    shares = two(slots=1)
    fill(shares, A, "a", 2)
    taken(shares)
    shares.add(B, replace(of("b", 1), limits=limits), 1.0)
    shares.add(B, of("b", 2), 1.0)
    assert list(shares.late(1.499)) == []
    ((gateway, failed),) = shares.late(1.5)
    assert (gateway, failed.stream, failed.code) == (B, 1, code)
    assert shares.streams(B) == [2]


def test_a_sequence_that_waits_is_cancelled_here() -> None:
    shares = two(slots=1)
    fill(shares, A, "a", 2)
    taken(shares)
    shares.add(B, of("b", 1), 0.0)
    assert shares.cancel(B, 1) == 0
    assert shares.cancel(B, 1) is None
    assert not shares.live(B)


def test_a_number_that_is_in_use_breaks_the_protocol_and_the_queue_is_bounded() -> None:
    shares = two(slots=1)
    fill(shares, A, "a", 2)
    taken(shares)
    shares.add(A, of("a", 3), 0.0)
    for stream in (1, 3):
        with pytest.raises(ProtocolError, match=f"stream {stream} was submitted twice"):
            shares.add(A, of("a", stream), 0.0)
    fill(shares, A, "a", MAX_WAITING - 1, first=4)
    with pytest.raises(NoTurn):
        shares.add(A, of("a", 5000), 0.0)
    shares.add(B, of("b", 1), 0.0)


def test_what_the_worker_has_reached_is_reported_in_the_numbers_of_each_gateway() -> None:
    shares = two(slots=2)
    for stream in (10, 11, 12):
        shares.add(A, of("a", stream), 0.0)
    first, second, third = taken(shares)
    shares.add(A, of("a", 13), 0.0)
    shares.add(B, of("b", 70), 0.0)

    def shown(gateway: int, reached: int) -> tuple[int, int]:
        gauges = Gauges(reached=reached)
        shares.note(gauges)
        own = shares.gauges(gateway, gauges)
        return own.reached, own.others

    assert shown(A, 0) == (9, 1)
    assert shown(A, second.stream) == (11, 1)
    assert shown(A, third.stream) == (12, 1), "13 waits here"
    assert shown(B, third.stream) == (69, 4)
    shares.end(first.stream)
    (fourth,) = taken(shares)
    assert fourth.request == "b70"
    assert shown(B, fourth.stream) == (70, 3)
    assert shown(A, fourth.stream) == (12, 1)


def test_what_the_worker_has_reached_of_a_lone_gateway_says_nothing_of_its_next_process() -> None:
    """A gateway that starts anew numbers its sequences from 1, and its worker still reports the old numbers."""
    shares = Shares(1)
    fill(shares, A, "a", 5, first=100)
    taken(shares)
    old = Gauges(reached=104)
    shares.note(old)
    for number in shares.leave(A):
        shares.end(number)
    fill(shares, A, "b", 1)
    (again,) = taken(shares)
    assert shares.gauges(A, old).reached == 0, "its prompt has just been sent"
    step = Step((Delta(again.stream, (1,)),), Gauges(reached=again.stream))
    shares.note(step.gauges)
    assert list(shares.split(step)) == [(A, Step((Delta(1, (1,)),), Gauges(reached=1)))]
    shares.clear()
    fill(shares, A, "c", 1, first=9)
    assert [each.stream for each in taken(shares)] == [9], "a new worker has reached nothing"


def test_the_sequences_of_a_gateway_that_has_left_keep_their_room_until_they_have_ended() -> None:
    shares = two(slots=2)
    fill(shares, A, "a", 9)
    running = [each.stream for each in taken(shares)]
    shares.add(B, of("b", 1), 0.0)
    assert shares.leave(A) == running
    assert shares.live(A)
    assert requests(shares) == []
    assert shares.ended(Finished(running[0], "cancelled", Usage(1, 0))) == (A, Finished(1, "cancelled", Usage(1, 0)))
    assert requests(shares) == ["b1"]
    for number in running[1:]:
        shares.end(number)
    assert not shares.live(A)


def test_a_lost_worker_leaves_nothing_but_what_it_never_got() -> None:
    shares = two(slots=1)
    fill(shares, A, "a", 5)
    fill(shares, B, "b", 1)
    taken(shares)
    assert shares.clear() == {A: [2, 3, 4, 5], B: []}
    assert not shares.live(A)
    fill(shares, A, "a", 1)
    assert requests(shares) == ["a1"]
