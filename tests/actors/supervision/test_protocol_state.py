"""What one incarnation has sent and owes: pure, with frames and times alone."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.supervision.deadlines import Deadlines
from actors.supervision.protocol_state import PeerMisbehaved, PeerRefused, ProtocolState
from actors.supervision.worker import WorkerState
from protocol.bounds import PROTOCOL_VERSION
from protocol.commands import Cancel
from protocol.errors import ByeReason, ErrorCode
from protocol.events import (
    SILENT_S,
    Bye,
    Capabilities,
    Event,
    Failed,
    Finished,
    Gauges,
    Heartbeat,
    Hello,
    Loading,
    Ready,
    Step,
    Usage,
)
from tests.actors.supervision.processes import submit

LIMITS = Deadlines(hello=10, loading=100, heartbeat=5, idle=5, hang=20, hang_factor=4, hang_most=100, stop=3, term=1)
HELLO = Hello(
    protocol=PROTOCOL_VERSION, worker="w", incarnation=3, pid=1, model="m", backend="b", device="d", slots=1, context=1
)
READY = Ready(capabilities=Capabilities())
IDLE, BUSY = Heartbeat(gauges=Gauges()), Heartbeat(gauges=Gauges(slots_active=1))
FINISHED = Finished(stream=1, reason="stop", usage=Usage(prompt_tokens=1, completion_tokens=1))
FAILED = Failed(stream=1, code=ErrorCode.STEP, text="")
BYE = Bye(reason=ByeReason.STOPPED, text="")
STEP = Step(deltas=())
LOADING = Loading(phase="weights", done=1, total=2)


def live(*events: Event, at: float = 0.0) -> ProtocolState:
    seen = ProtocolState("w", 3, LIMITS, at)
    for event in events:
        seen.receive(event, at)
    return seen


def test_from_start_to_bye() -> None:
    seen = live()
    assert seen.state is WorkerState.STARTING
    for event, state in (
        (HELLO, WorkerState.LOADING),
        (IDLE, WorkerState.LOADING),
        (LOADING, WorkerState.LOADING),
        (READY, WorkerState.READY),
        (STEP, WorkerState.READY),
        (FINISHED, WorkerState.READY),
        (FAILED, WorkerState.READY),
        (BYE, WorkerState.READY),
    ):
        seen.receive(event, 0.0)
        assert seen.state is state
    assert (seen.hello, seen.loading, seen.ready, seen.bye) == (HELLO, LOADING, READY, BYE)


ORDER = {
    "beat first": ([], IDLE, "Heartbeat came before Hello"),
    "bye first": ([], BYE, "Bye came before Hello"),
    "hello twice": ([HELLO], HELLO, "a second Hello"),
    "step early": ([HELLO], STEP, "Step came before Ready"),
    "finished early": ([HELLO], FINISHED, "Finished came before Ready"),
    "failed early": ([HELLO], FAILED, "Failed came before Ready"),
    "ready twice": ([HELLO, READY], READY, "Ready came after Ready"),
    "loading late": ([HELLO, READY], LOADING, "Loading came after Ready"),
    "after bye": ([HELLO, READY, BYE], IDLE, "Heartbeat came after Bye"),
}


@pytest.mark.parametrize(("before", "event", "text"), ORDER.values(), ids=ORDER)
def test_frames_out_of_order_are_refused(before: list[Event], event: Event, text: str) -> None:
    with pytest.raises(PeerMisbehaved, match=text):
        live(*before).receive(event, 0.0)


@pytest.mark.parametrize(
    ("field", "value", "lasting"),
    [("protocol", PROTOCOL_VERSION + 1, True), ("incarnation", 2, False), ("worker", "v", False)],
)
def test_a_hello_that_cannot_be_welcomed(field: str, value: object, lasting: bool) -> None:
    values = {name: getattr(HELLO, name) for name in HELLO.__struct_fields__} | {field: value}
    seen = live()
    with pytest.raises(PeerRefused, match=field) as caught:
        seen.receive(Hello(**values), 0.0)
    assert caught.value.lasting is lasting
    assert seen.hello is None


def test_the_hello_deadline() -> None:
    seen = live(at=100.0)
    assert seen.overdue(109.9) is None
    assert seen.overdue(110.0) == "no Hello for 10 s"


def test_the_loading_deadline_counts_from_the_last_progress() -> None:
    seen = live(HELLO)
    for second in range(0, 60, 4):
        seen.receive(Loading(phase="weights", done=1, total=2), second)
    assert seen.last_progress == 0.0
    seen.receive(Loading(phase="weights", done=2, total=2), 60.0)
    for second in range(60, 160, 4):
        seen.receive(IDLE, second)
        assert seen.overdue(second) is None
    seen.receive(IDLE, 160.0)
    assert seen.overdue(160.0) == "no loading progress for 100 s"


@pytest.mark.parametrize("before", [[HELLO], [HELLO, READY]], ids=["loading", "ready"])
def test_the_beat_deadline(before: list[Event]) -> None:
    seen = live(*before)
    assert seen.overdue(4.9) is None
    assert seen.overdue(5.0) == "no frame for 5 s"


class TestIdle:
    """A worker without work is late sooner than one with work."""

    LIMITS = replace(LIMITS, heartbeat=30, idle=4)

    def live(self, *events: Event) -> ProtocolState:
        seen = ProtocolState("w", 3, self.LIMITS, 0.0)
        for event in (HELLO, *events):
            seen.receive(event, 0.0)
        return seen

    def test_its_beat_is_due(self) -> None:
        seen = self.live(READY)
        seen.receive(IDLE, 10.0)
        assert seen.overdue(13.9) is None
        assert seen.overdue(14.0) == "no heartbeat without work for 4 s"

    def test_what_loads_is_not_idle(self) -> None:
        assert self.live().overdue(29.9) is None

    @pytest.mark.parametrize("busy", ["by its gauges", "by what was sent"])
    def test_what_works_is_not_idle(self, busy: str) -> None:
        seen = self.live(READY, BUSY if busy == "by its gauges" else IDLE)
        if busy == "by what was sent":
            seen.sent([submit(1)], SILENT_S - 0.1)
        assert seen.overdue(19.9) is None

    def test_what_was_sent_last_may_have_kept_it_busy(self) -> None:
        seen = self.live(READY, IDLE)
        seen.sent([submit(1)], 1.0)
        seen.sent([Cancel(1)], 2.0)
        assert seen.overdue(5.9) is None
        assert seen.overdue(6.0) == "no heartbeat without work for 4 s"

    @pytest.mark.parametrize(("at", "late"), [(SILENT_S - 0.1, False), (SILENT_S, True)])
    def test_work_is_no_excuse_for_the_beats_missed_before_it(self, at: float, late: bool) -> None:
        seen = self.live(READY, IDLE)
        seen.sent([submit(1)], at)
        seen.sent([Cancel(1)], at)
        seen.sent([submit(2)], at)
        assert seen.overdue(3.9) is None
        assert seen.overdue(4.0) == ("no heartbeat without work for 4 s" if late else None)
        seen.receive(BUSY, 4.0)
        assert seen.overdue(19.9) is None, "it lives: its steps count from now on"

    def test_a_shorter_bound_than_three_beats_holds_as_well(self) -> None:
        seen = ProtocolState("w", 3, replace(self.LIMITS, idle=1.0), 0.0)
        for event in (HELLO, READY):
            seen.receive(event, 0.0)
        seen.sent([submit(1)], 1.0)
        assert seen.overdue(1.0) == "no heartbeat without work for 1 s"


def hang(seen: ProtocolState, event: Event, start: float, seconds: int) -> str | None:
    for second in range(seconds + 1):
        seen.receive(event, start + second)
        if late := seen.overdue(start + second):
            return f"{second}: {late}"
    return None


def test_an_idle_worker_that_beats_never_hangs() -> None:
    seen = live(HELLO, READY)
    assert hang(seen, IDLE, 0.0, 1000) is None
    assert seen.last_progress == 1000.0


def test_one_that_says_that_it_is_about_to_end_must_do_so() -> None:
    """Nobody waits for what it has lost until its request's own deadline."""
    seen = live(HELLO, READY, IDLE)
    seen.sent([submit(1)], 0.0)
    seen.receive(Failed(stream=1, code=ErrorCode.LOST, text="a bug"), 0.0)
    assert hang(seen, IDLE, 0.0, 100) == "20: no step finished with work in flight for 20 s"


@pytest.mark.parametrize("gauges", [Gauges(slots_active=1), Gauges(queue_depth=1)], ids=["slot", "queue"])
def test_work_without_steps_is_a_hang(gauges: Gauges) -> None:
    seen = live(HELLO, READY, IDLE)
    assert hang(seen, Heartbeat(gauges=gauges), 0.0, 100) == "20: no step finished with work in flight for 20 s"


@pytest.mark.parametrize(
    ("expected_ms", "slowest_ms", "granted"),
    [
        (0, 0, 20),
        (5000, 0, 20),
        (5001, 0, 20.004),
        (0, 10_000, 40),
        (12_000, 6000, 48),
        (0, 25_000, 100),
        (0, 25_001, 100),
    ],
)
def test_a_hang_is_measured_by_the_longest_legitimate_step(expected_ms: int, slowest_ms: int, granted: float) -> None:
    seen = live(HELLO, Ready(capabilities=Capabilities(), step_ms=expected_ms))
    seen.receive(Heartbeat(gauges=Gauges(slots_active=1, steps=1, slowest_step_ms=slowest_ms)), 0.0)
    assert seen.hang_s == granted
    seen.receive(Heartbeat(gauges=Gauges(slots_active=1, steps=1)), granted - 0.001)
    seen.receive(Heartbeat(gauges=Gauges(slots_active=1, steps=1, slowest_step_ms=slowest_ms)), granted - 0.001)
    assert seen.overdue(granted - 0.001) is None
    assert seen.overdue(granted) == f"no step finished with work in flight for {granted:g} s"


def test_a_submit_that_never_shows_in_the_gauges_is_a_hang() -> None:
    seen = live(HELLO, READY)
    hang(seen, IDLE, 0.0, 50)
    seen.sent([submit(1)], 50.0)
    assert hang(seen, IDLE, 50.0, 100) == "20: no step finished with work in flight for 20 s"


@pytest.mark.parametrize(("code", "counts"), [(ErrorCode.CONTEXT, True), (ErrorCode.DEADLINE, False)])
def test_a_refusal_is_progress_and_a_deadline_is_none(code: ErrorCode, counts: bool) -> None:
    seen = live(HELLO, READY)
    seen.sent([submit(1), submit(2)], 50.0)
    seen.receive(Failed(stream=1, code=code, text=""), 69.0)
    assert (seen.overdue(70.0) is None) == counts


@pytest.mark.parametrize("end", [FINISHED, FAILED, None], ids=["finished", "failed", "cancelled"])
def test_an_ended_stream_is_no_work(end: Event | None) -> None:
    seen = live(HELLO, READY)
    seen.sent([submit(1)], 0.0)
    before = seen.busy
    if end is None:
        seen.sent([Cancel(stream=1)], 1.0)
    else:
        seen.receive(end, 1.0)
    assert (before, seen.busy) == (True, False)
    assert hang(seen, IDLE, 1.0, 100) is None


def test_steps_that_advance_are_progress() -> None:
    seen = live(HELLO, READY)
    for second in range(200):
        seen.receive(Heartbeat(gauges=Gauges(slots_active=1, steps=second // 10)), float(second))
        assert seen.overdue(float(second)) is None
    assert seen.last_progress == 190.0


def test_leaving() -> None:
    seen = live(HELLO, READY)
    assert live(HELLO, READY).leave_by is None
    for by in (30.0, 20.0, 40.0):
        seen.leave(by)
    assert seen.state is WorkerState.DRAINING
    assert seen.leave_by == 20.0


def test_ready_does_not_undo_a_drain() -> None:
    seen = live(HELLO)
    seen.leave(30.0)
    seen.receive(READY, 0.0)
    assert seen.state is WorkerState.DRAINING


@pytest.mark.parametrize("field", Deadlines.__dataclass_fields__)
def test_deadlines_are_above_zero(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        replace(LIMITS, **{field: 0.0})


def test_the_bound_of_a_hang_is_not_below_its_floor() -> None:
    assert replace(LIMITS, hang_most=20).hang_most == 20
    with pytest.raises(ValueError, match="hang_most"):
        replace(LIMITS, hang_most=19.9)


EVENTS = st.sampled_from([HELLO, READY, IDLE, BUSY, STEP, FINISHED, FAILED, LOADING, BYE])


@given(story=st.lists(st.tuples(EVENTS, st.floats(0, 30)), max_size=40))
def test_any_story_keeps_the_order_and_the_deadlines(story: list[tuple[Event, float]]) -> None:
    seen, now = live(), 0.0
    order = list(WorkerState)
    for event, pause in story:
        now += pause
        before = seen.state
        late = seen.overdue(now)
        assert late is None or seen.overdue(now + 1.0) is not None
        try:
            seen.receive(event, now)
        except PeerMisbehaved:
            assert seen.state is before
            assert seen.overdue(now) == late
            continue
        assert order.index(seen.state) >= order.index(before)
        assert (seen.state is WorkerState.STARTING) == (seen.hello is None)
        assert (seen.state is WorkerState.READY) == (seen.ready is not None)
        assert seen.last_progress <= now
        assert seen.overdue(now) is None or (seen.busy and now - seen.last_progress >= LIMITS.hang) or not seen.ready
