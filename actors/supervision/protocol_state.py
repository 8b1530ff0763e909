"""The protocol state of one incarnation, and its deadlines. Pure: frames and times in, verdicts out."""

from collections.abc import Iterable

from actors.process.exit_cause import Origin
from actors.supervision.deadlines import Deadlines
from actors.supervision.hello_check import implausible
from actors.supervision.worker import WorkerState
from actors.transport.rejections import Rejection
from protocol.bounds import PROTOCOL_VERSION
from protocol.commands import Cancel, Command, Submit
from protocol.errors import ErrorCode
from protocol.events import (
    SILENT_S,
    AdapterChanged,
    Bye,
    Event,
    Failed,
    Finished,
    Gauges,
    Heartbeat,
    Hello,
    Loading,
    PromptLogprobs,
    Ready,
    Rows,
    RowsWritten,
    Step,
    Tokenized,
)


class PeerMisbehaved(Exception):
    """Raised by `receive` when a frame comes out of order or breaks the protocol. The peer must be dropped."""

    kind = Rejection.FRAME
    """The reason under which it is counted."""
    origin = Origin.WITHIN
    """The origin of the end that follows."""


class PeerRefused(PeerMisbehaved):
    """Raised by `receive` for a `Hello` that is refused; the text is the refusal. `lasting` is true when
    another start of the same program would be refused for the same reason."""

    def __init__(self, text: str, kind: Rejection, lasting: bool) -> None:
        super().__init__(text)
        self.kind = kind
        self.lasting = lasting


class ProtocolState:
    """The gateway's side of the protocol, from the start of an incarnation to its `Bye`."""

    def __init__(self, worker: str, number: int, deadlines: Deadlines, now: float, *, joins: bool = False) -> None:
        """A worker that `joins` gets its number by its `Welcome`; its name is that of its key."""
        self.worker = worker
        self.joins = joins
        self.number = number
        self.state = WorkerState.STARTING
        self.hello: Hello | None = None
        self.ready: Ready | None = None
        self.loading: Loading | None = None
        self.gauges = Gauges()
        self._steps = 0
        """The most steps that it has reported: one that counts backwards in between makes no progress."""
        self.bye: Bye | None = None
        self.last_progress = now
        self.leave_by: float | None = None
        """The deadline of an incarnation that was asked to leave."""
        self._deadlines = deadlines
        self.last_frame = now
        """The time of its last frame, or of its start."""
        self._last_sent = now
        self._idle_since: float | None = None
        """The time of its last frame, if it had missed heartbeats before it got work."""
        self._in_flight: set[int] = set()

    @property
    def busy(self) -> bool:
        """Work is in flight, by the worker's own gauges or by what was sent to it and has not ended."""
        return self.gauges.slots_active > 0 or self.gauges.queue_depth > 0 or bool(self._in_flight)

    @property
    def hang_s(self) -> float:
        """Seconds without a finished step, with work in flight, that are a hang: from the longest step so far, and from
        the longest that the worker expects."""
        expected = 0 if self.ready is None else self.ready.step_ms
        return self._deadlines.step(max(expected, self.gauges.slowest_step_ms) / 1000)

    def receive(self, event: Event, now: float) -> None:
        """Take one frame. Raises `PeerMisbehaved`; nothing changed then."""
        if self.bye is not None:
            raise PeerMisbehaved(f"{_name(event)} came after Bye")
        if isinstance(event, Hello) != (self.hello is None):
            raise PeerMisbehaved("a second Hello came" if self.hello else f"{_name(event)} came before Hello")
        match event:
            case Hello():
                self._take_hello(event)
                self._progress(now)
            case Loading():
                self._expect(event, self.ready is None)
                if event != self.loading:
                    self._progress(now)
                self.loading = event
            case Ready():
                self._expect(event, self.ready is None)
                self.ready = event
                if self.state is WorkerState.LOADING:
                    self.state = WorkerState.READY
                self._progress(now)
            case Step(gauges=gauges) | Heartbeat(gauges=gauges):
                self._expect(event, self.ready is not None or isinstance(event, Heartbeat))
                self._measure(gauges, now)
            case Failed(code=ErrorCode.LOST):
                # It is about to end: until then its work counts as in flight.
                self._expect(event, self.ready is not None)
            case Finished(stream=stream) | Failed(stream=stream):
                self._expect(event, self.ready is not None)
                self._in_flight.discard(stream)
                if isinstance(event, Failed) and event.code is not ErrorCode.DEADLINE:
                    # Progress without a step: many refused prompts take long. A deadline passes by itself.
                    self._progress(now)
            case Tokenized() | PromptLogprobs() | Rows() | RowsWritten() | AdapterChanged():
                self._expect(event, self.ready is not None)
            case Bye():
                self.bye = event
        self.last_frame, self._idle_since = now, None

    def sent(self, commands: Iterable[Command], now: float) -> None:
        """Note what was sent: a stream is in flight from its `Submit` to its end or its `Cancel`."""
        quiet_since = max(self.last_frame, self._last_sent)
        self._last_sent = now
        for command in commands:
            if isinstance(command, Submit):
                if not self.busy:
                    self._progress(now)
                    if self._idle_since is None and now - quiet_since >= min(SILENT_S, self._deadlines.idle):
                        self._idle_since = quiet_since
                self._in_flight.add(command.stream)
            elif isinstance(command, Cancel):
                self._in_flight.discard(command.stream)

    def leave(self, by: float) -> None:
        """Note that it was asked to leave by that time; an earlier time stays."""
        self.state = WorkerState.DRAINING
        self.leave_by = by if self.leave_by is None else min(by, self.leave_by)

    def overdue(self, now: float) -> str | None:
        """Describe the deadline that has passed, or return None."""
        limits = self._deadlines
        if self.hello is None:
            return _late("no Hello", self.last_progress, limits.hello, now)
        silent = _late("no frame", self.last_frame, limits.heartbeat, now)
        if self.ready is None:
            return silent or _late("no loading progress", self.last_progress, limits.loading, now)
        if self.busy and self._idle_since is None:
            return silent or _late("no step finished with work in flight", self.last_progress, self.hang_s, now)
        # Sequences that were cancelled may have kept it busy.
        since = max(self.last_frame, self._last_sent) if self._idle_since is None else self._idle_since
        return silent or _late("no heartbeat without work", since, limits.idle, now)

    def _take_hello(self, hello: Hello) -> None:
        if hello.protocol != PROTOCOL_VERSION:
            text = f"protocol version {hello.protocol} is not {PROTOCOL_VERSION}"
            raise PeerRefused(text, Rejection.VERSION, lasting=True)
        expected = 0 if self.joins else self.number
        if hello.incarnation != expected:
            text = f"incarnation {hello.incarnation} is not {expected}"
            raise PeerRefused(text, Rejection.INCARNATION, lasting=False)
        if hello.worker != self.worker and not self.joins:
            text = f"worker {hello.worker!r} is not {self.worker!r}"
            raise PeerRefused(text, Rejection.INCARNATION, lasting=False)
        if (problem := implausible(hello)) is not None:
            raise PeerRefused(problem, Rejection.FRAME, lasting=True)
        self.hello = hello
        if self.state is WorkerState.STARTING:
            self.state = WorkerState.LOADING

    def _measure(self, gauges: Gauges, now: float) -> None:
        advanced = gauges.steps > self._steps
        self._steps = max(self._steps, gauges.steps)
        self.gauges = gauges
        if advanced or (self.ready is not None and not self.busy):
            self._progress(now)

    def _progress(self, now: float) -> None:
        self.last_progress = now

    def _expect(self, event: Event, in_order: bool) -> None:
        if not in_order:
            raise PeerMisbehaved(f"{_name(event)} came {'after' if self.ready else 'before'} Ready")


def _name(event: Event) -> str:
    return type(event).__name__


def _late(what: str, since: float, limit: float, now: float) -> str | None:
    return f"{what} for {limit:g} s" if now - since >= limit else None
