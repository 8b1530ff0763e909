"""Frames that one incarnation has sent and owes: pure, with frames and times alone."""

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
    protocol = ProtocolState("w", 3, LIMITS, at)
    for event in events:
        protocol.receive(event, at)
    return protocol


def test_from_start_to_bye() -> None:
    protocol = live()
    assert protocol.state is WorkerState.STARTING
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
        protocol.receive(event, 0.0)
        assert protocol.state is state
    assert (protocol.hello, protocol.loading, protocol.ready, protocol.bye) == (HELLO, LOADING, READY, BYE)


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
    [
        ("protocol", PROTOCOL_VERSION + 1, True),
        ("incarnation", 2, False),
        ("worker", "v", False),
        ("device", "gpu\n", True),
    ],
)
def test_a_hello_that_cannot_be_welcomed(field: str, value: object, lasting: bool) -> None:
    values = {name: getattr(HELLO, name) for name in HELLO.__struct_fields__} | {field: value}
    protocol = live()
    with pytest.raises(PeerRefused, match=field) as caught:
        protocol.receive(Hello(**values), 0.0)
    assert caught.value.lasting is lasting
    assert protocol.hello is None


def test_the_hello_deadline() -> None:
    protocol = live(at=100.0)
    assert protocol.overdue(109.9) is None
    assert protocol.overdue(110.0) == "no Hello for 10 s"


def test_the_loading_deadline_counts_from_the_last_progress() -> None:
    protocol = live(HELLO)
    for second in range(0, 60, 4):
        protocol.receive(Loading(phase="weights", done=1, total=2), second)
    assert protocol.last_progress == 0.0
    protocol.receive(Loading(phase="weights", done=2, total=2), 60.0)
    for second in range(60, 160, 4):
        protocol.receive(IDLE, second)
        assert protocol.overdue(second) is None
    protocol.receive(IDLE, 160.0)
    assert protocol.overdue(160.0) == "no loading progress for 100 s"


@pytest.mark.parametrize("before", [[HELLO], [HELLO, READY]], ids=["loading", "ready"])
def test_the_beat_deadline(before: list[Event]) -> None:
    protocol = live(*before)
    assert protocol.overdue(4.9) is None
    assert protocol.overdue(5.0) == "no frame for 5 s"


class TestIdle:
    """A worker without work is late sooner than one with work."""

    LIMITS = replace(LIMITS, heartbeat=30, idle=4)

    def live(self, *events: Event) -> ProtocolState:
        protocol = ProtocolState("w", 3, self.LIMITS, 0.0)
        for event in (HELLO, *events):
            protocol.receive(event, 0.0)
        return protocol

    def test_its_beat_is_due(self) -> None:
        protocol = self.live(READY)
        protocol.receive(IDLE, 10.0)
        assert protocol.overdue(13.9) is None
        assert protocol.overdue(14.0) == "no heartbeat without work for 4 s"

    def test_what_loads_is_not_idle(self) -> None:
        assert self.live().overdue(29.9) is None

    @pytest.mark.parametrize("busy", ["by its gauges", "by what was sent"])
    def test_what_works_is_not_idle(self, busy: str) -> None:
        protocol = self.live(READY, BUSY if busy == "by its gauges" else IDLE)
        if busy == "by what was sent":
            protocol.sent([submit(1)], SILENT_S - 0.1)
        assert protocol.overdue(19.9) is None

    def test_what_was_sent_last_may_have_kept_it_busy(self) -> None:
        protocol = self.live(READY, IDLE)
        protocol.sent([submit(1)], 1.0)
        protocol.sent([Cancel(1)], 2.0)
        assert protocol.overdue(5.9) is None
        assert protocol.overdue(6.0) == "no heartbeat without work for 4 s"

    @pytest.mark.parametrize(("at", "late"), [(SILENT_S - 0.1, False), (SILENT_S, True)])
    def test_work_is_no_excuse_for_the_beats_missed_before_it(self, at: float, late: bool) -> None:
        protocol = self.live(READY, IDLE)
        protocol.sent([submit(1)], at)
        protocol.sent([Cancel(1)], at)
        protocol.sent([submit(2)], at)
        assert protocol.overdue(3.9) is None
        assert protocol.overdue(4.0) == ("no heartbeat without work for 4 s" if late else None)
        protocol.receive(BUSY, 4.0)
        assert protocol.overdue(19.9) is None, "it lives: its steps count from now on"

    def test_a_shorter_bound_than_three_beats_holds_as_well(self) -> None:
        protocol = ProtocolState("w", 3, replace(self.LIMITS, idle=1.0), 0.0)
        for event in (HELLO, READY):
            protocol.receive(event, 0.0)
        protocol.sent([submit(1)], 1.0)
        assert protocol.overdue(1.0) == "no heartbeat without work for 1 s"


def hang(protocol: ProtocolState, event: Event, start: float, seconds: int) -> str | None:
    for second in range(seconds + 1):
        protocol.receive(event, start + second)
        if late := protocol.overdue(start + second):
            return f"{second}: {late}"
    return None


def test_an_idle_worker_that_beats_never_hangs() -> None:
    protocol = live(HELLO, READY)
    assert hang(protocol, IDLE, 0.0, 1000) is None
    assert protocol.last_progress == 1000.0


def test_one_that_says_that_it_is_about_to_end_must_do_so() -> None:
    """Nobody waits for what it has lost until its request's own deadline."""
    protocol = live(HELLO, READY, IDLE)
    protocol.sent([submit(1)], 0.0)
    protocol.receive(Failed(stream=1, code=ErrorCode.LOST, text="a bug"), 0.0)
    assert hang(protocol, IDLE, 0.0, 100) == "20: no step finished with work in flight for 20 s"


@pytest.mark.parametrize("gauges", [Gauges(slots_active=1), Gauges(queue_depth=1)], ids=["slot", "queue"])
def test_work_without_steps_is_a_hang(gauges: Gauges) -> None:
    protocol = live(HELLO, READY, IDLE)
    assert hang(protocol, Heartbeat(gauges=gauges), 0.0, 100) == "20: no step finished with work in flight for 20 s"


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
    protocol = live(HELLO, Ready(capabilities=Capabilities(), step_ms=expected_ms))
    protocol.receive(Heartbeat(gauges=Gauges(slots_active=1, steps=1, slowest_step_ms=slowest_ms)), 0.0)
    assert protocol.hang_s == granted
    protocol.receive(Heartbeat(gauges=Gauges(slots_active=1, steps=1)), granted - 0.001)
    protocol.receive(Heartbeat(gauges=Gauges(slots_active=1, steps=1, slowest_step_ms=slowest_ms)), granted - 0.001)
    assert protocol.overdue(granted - 0.001) is None
    assert protocol.overdue(granted) == f"no step finished with work in flight for {granted:g} s"


def test_a_submit_that_never_shows_in_the_gauges_is_a_hang() -> None:
    protocol = live(HELLO, READY)
    hang(protocol, IDLE, 0.0, 50)
    protocol.sent([submit(1)], 50.0)
    assert hang(protocol, IDLE, 50.0, 100) == "20: no step finished with work in flight for 20 s"


@pytest.mark.parametrize(("code", "counts"), [(ErrorCode.CONTEXT, True), (ErrorCode.DEADLINE, False)])
def test_a_refusal_is_progress_and_a_deadline_is_none(code: ErrorCode, counts: bool) -> None:
    protocol = live(HELLO, READY)
    protocol.sent([submit(1), submit(2)], 50.0)
    protocol.receive(Failed(stream=1, code=code, text=""), 69.0)
    assert (protocol.overdue(70.0) is None) == counts


@pytest.mark.parametrize("end", [FINISHED, FAILED, None], ids=["finished", "failed", "cancelled"])
def test_an_ended_stream_is_no_work(end: Event | None) -> None:
    protocol = live(HELLO, READY)
    protocol.sent([submit(1)], 0.0)
    before = protocol.busy
    if end is None:
        protocol.sent([Cancel(stream=1)], 1.0)
    else:
        protocol.receive(end, 1.0)
    assert (before, protocol.busy) == (True, False)
    assert hang(protocol, IDLE, 1.0, 100) is None


def test_steps_that_advance_are_progress() -> None:
    protocol = live(HELLO, READY)
    for second in range(200):
        protocol.receive(Heartbeat(gauges=Gauges(slots_active=1, steps=second // 10)), float(second))
        assert protocol.overdue(float(second)) is None
    assert protocol.last_progress == 190.0


def test_leaving() -> None:
    protocol = live(HELLO, READY)
    assert live(HELLO, READY).leave_by is None
    for by in (30.0, 20.0, 40.0):
        protocol.leave(by)
    assert protocol.state is WorkerState.DRAINING
    assert protocol.leave_by == 20.0


def test_ready_does_not_undo_a_drain() -> None:
    protocol = live(HELLO)
    protocol.leave(30.0)
    protocol.receive(READY, 0.0)
    assert protocol.state is WorkerState.DRAINING


@pytest.mark.parametrize("field", Deadlines.__dataclass_fields__)
def test_deadlines_are_above_zero(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        replace(LIMITS, **{field: 0.0})


def test_the_bound_of_a_hang_is_not_below_its_floor() -> None:
    assert replace(LIMITS, hang_most=20).hang_most == 20
    with pytest.raises(ValueError, match="hang_most"):
        replace(LIMITS, hang_most=19.9)


EVENTS = st.sampled_from([HELLO, READY, IDLE, BUSY, STEP, FINISHED, FAILED, LOADING, BYE])


@given(script=st.lists(st.tuples(EVENTS, st.floats(0, 30)), max_size=40))
def test_any_frames_keep_the_order_and_the_deadlines(script: list[tuple[Event, float]]) -> None:
    protocol, now = live(), 0.0
    order = list(WorkerState)
    for event, pause in script:
        now += pause
        before = protocol.state
        late = protocol.overdue(now)
        assert late is None or protocol.overdue(now + 1.0) is not None
        try:
            protocol.receive(event, now)
        except PeerMisbehaved:
            assert protocol.state is before
            assert protocol.overdue(now) == late
            continue
        assert order.index(protocol.state) >= order.index(before)
        assert (protocol.state is WorkerState.STARTING) == (protocol.hello is None)
        assert (protocol.state is WorkerState.READY) == (protocol.ready is not None)
        assert protocol.last_progress <= now
        assert (
            protocol.overdue(now) is None
            or (protocol.busy and now - protocol.last_progress >= LIMITS.hang)
            or not protocol.ready
        )
