"""One incarnation of a worker, from its start until nothing of it is left: a part of `actors.supervision.life`.

It does no I/O and reads no clock; it logs, and counts what it rejects. Its methods generate decisions, in order; a
`Changed` stands for the status at that point.
"""

import math
from collections.abc import Iterator, Sequence

import structlog
from msgspec import Struct
from msgspec.structs import replace

from actors.join.request import DECLINE_LINGER_S
from actors.process.exit_cause import Origin
from actors.supervision import messages as msg
from actors.supervision.deadlines import Deadlines
from actors.supervision.output_check import OutputCheck
from actors.supervision.protocol_state import PeerMisbehaved, PeerRefused, ProtocolState
from actors.supervision.worker import GraceEnded, IncarnationLost, LastFailure, WorkerEvent, WorkerStatus
from actors.transport.rejections import Rejections
from protocol.codec import decode_event
from protocol.commands import Command, Drain, Stop, Welcome
from protocol.errors import ByeReason, ProtocolError
from protocol.events import (
    AdapterChanged,
    Bye,
    Event,
    Failed,
    Finished,
    Heartbeat,
    Hello,
    PromptLogprobs,
    Ready,
    Rows,
    RowsWritten,
    Step,
    Tokenized,
)

EXIT_LAG_S = 1.0
"""Maximum time between the exit of a process and the end of its link. The exit tells who ended it; the link may still
bring frames."""
_ENDED_BY_OTHERS = frozenset({ByeReason.STOPPED, ByeReason.KILLED})
_FOR_WATCHERS = (Step, Heartbeat, PromptLogprobs, Finished, Failed, Tokenized, Rows, RowsWritten, AdapterChanged)
"""Events that go on to the watchers."""
LEFT = msg.Loss("stopped", Origin.OUTSIDE, asked=True)


class Changed(Struct, frozen=True):
    """The worker's status has changed."""


class PeerForeign(PeerMisbehaved):
    """Raised when a process that was not started here sends a frame. It says nothing about the one that was."""

    origin = Origin.OUTSIDE


Output = msg.Decision | Changed


class Incarnation:
    """Runs until it is `ending`: it was lost, and its watchers were notified, or it was asked to leave, and its frames
    still count."""

    def __init__(self, protocol: ProtocolState, deadlines: Deadlines, rejections: Rejections, now: float) -> None:
        self.protocol = protocol
        self._output = OutputCheck()
        self.pid: int | None = None
        self.address = ""
        self.ending = False
        self.loss: msg.Loss | None = None
        """Its end, set when the watchers are notified."""
        self.failure: LastFailure | None = None
        """Its end, if it ended unasked."""
        self._deadlines = deadlines
        self._rejections = rejections
        self._log = structlog.get_logger("worker").bind(worker=protocol.worker, incarnation=protocol.number)
        self._observe_s = deadlines.check_s if protocol.joins else deadlines.observe_s
        self._observe_at = now + self._observe_s
        self._grace_until = math.inf
        self._exited: msg.Exited | None = None
        self._link_lost: msg.LinkLost | None = None
        self._settle_at = math.inf  # of the exit or the end of the link: frames may arrive until then
        self._suspended_since: float | None = None
        self._checked_at = now
        self._stood_still = False

    @property
    def due(self) -> float:
        """The time of the next `Observation`."""
        return math.inf if self.ending else min(self._observe_at, self._grace_until, self._settle_at)

    def describe(self, status: WorkerStatus) -> WorkerStatus:
        """The status of the worker with the fields of this incarnation."""
        protocol = self.protocol
        return replace(
            status,
            state=protocol.state,
            pid=self.pid,
            hello=protocol.hello,
            ready=protocol.ready,
            gauges=protocol.gauges,
            loading=protocol.loading,
            last_progress=protocol.last_progress,
            last_frame=protocol.last_frame,
            hang_s=protocol.hang_s,
            address=self.address,
        )

    def sent(self, commands: Sequence[Command], now: float) -> None:
        """Note commands that were sent for others."""
        self.protocol.sent(commands, now)
        self._output.sent(commands, now)

    def take(self, message: msg.Input, now: float) -> Iterator[Output]:
        """Process one input."""
        match message:
            case msg.Started(pid, address):
                self.pid, self.address = pid, address
                yield Changed()
            case msg.Frames(_, frames, fault) if self.loss is None:
                yield from self._receive(frames, fault, now)
            case msg.NotSent(Welcome()) if self.loss is None:
                yield from self.lose(msg.Loss("its Hello could not be answered"), now)
            case msg.NotSent() if not self.ending:
                yield from self._leave_now(now)
            case msg.Exited() if not self.ending:
                self._exited = message
                self._settle_at = now if self._link_lost or self.protocol.hello is None else now + EXIT_LAG_S
                yield from self._settle(self._end(now), now)
            case msg.LinkLost() if not self.ending:
                self._link_lost = message
                self._settle_at = now if self._exited or message.final else now + EXIT_LAG_S
                yield from self._settle(self._end(now), now)
            case msg.Observation() if not self.ending:
                yield from self._observe(message, now)
            case msg.Loss() if self.loss is None:
                yield from self.lose(message, now)

    # Frames.

    def _receive(self, frames: Sequence[bytes], fault: str, now: float) -> Iterator[Output]:
        protocol = self.protocol
        for frame in frames:
            before = protocol.state, protocol.loading
            try:
                if fault:
                    raise PeerForeign(fault)
                event = decode_event(frame)
                protocol.receive(event, now)
                self._output.check(event, now)
            except ProtocolError as error:
                yield from self._reject(PeerMisbehaved(str(error)), now)
                return
            except PeerMisbehaved as error:
                yield from self._reject(error, now)
                return
            if isinstance(event, _FOR_WATCHERS):
                yield WorkerEvent(protocol.worker, protocol.number, event)
                continue
            self._note(event)
            if isinstance(event, Hello):
                yield msg.SendCommand(Welcome(protocol.number))
            yield from self._settle(self._end(now), now)
            if self.loss is not None:
                return
            if before != (protocol.state, protocol.loading):
                yield Changed()

    def _note(self, event: Event) -> None:
        log = self._log
        if isinstance(event, Hello):
            context = {"context": event.context, "model_context": event.model_context, "bound": event.context_bound}
            log.info(
                "worker_hello", pid=event.pid, model=event.model, backend=event.backend, device=event.device, **context
            )
        elif isinstance(event, Ready):
            log.info("worker_ready", load_ms=event.load_ms, device=event.device, hang_s=self.protocol.hang_s)
        elif isinstance(event, Bye):
            log.info("worker_bye", reason=event.reason, text=event.text)

    def _reject(self, error: PeerMisbehaved, now: float) -> Iterator[Output]:
        """End the incarnation of a peer that broke the protocol; a refused `Hello` is answered with the reason."""
        self._log.warning("worker_frame_refused", reason=str(error))
        refused = error if isinstance(error, PeerRefused) else None
        self._rejections.count(error.kind)
        reason = f"it broke the protocol: {error}"
        loss = msg.Loss(reason, error.origin, lasting=refused is not None and refused.lasting)
        yield from self.lose(loss, now, refusal=str(refused or ""))

    # Ends.

    def leave(self, message: msg.DrainWorker | msg.RestartWorker | msg.StopWorker, now: float) -> Iterator[Output]:
        """Ask it to leave, at once if it has nothing to finish. A remote one gets no `Stop`: it may serve another
        gateway next."""
        protocol = self.protocol
        if protocol.hello is None or (protocol.joins and isinstance(message, msg.StopWorker)):
            yield from self._leave_now(now)
            return
        command: Command = Stop()
        time_s = 0.0
        if not isinstance(message, msg.StopWorker) and protocol.ready is not None:
            time_s = message.grace_s + message.move_s
            command = Drain(grace_ms=max(0, int(time_s * 1000)))
            self._grace_until = now + message.grace_s
        protocol.leave(now + time_s + self._deadlines.stop)
        yield msg.SendCommand(command)
        yield Changed()

    def _leave_now(self, now: float) -> Iterator[Output]:
        self.protocol.leave(now)
        yield Changed()
        yield from self._settle(LEFT, now)

    def lose(self, loss: msg.Loss, now: float, refusal: str = "") -> Iterator[Output]:
        """End it after a failure: notify its watchers, and take no more frames."""
        leaves = self.protocol.bye is not None or bool(refusal)
        self.failure = LastFailure(self.protocol.number, loss.reason, loss.origin, now)
        yield from self._close(loss, refusal)
        yield from self._end_process(self._patience(now) if leaves else 0.0)

    def ended(self) -> Iterator[Output]:
        """Notify the watchers, if it ended as asked."""
        if self.loss is None:
            yield from self._close(LEFT)

    def _close(self, loss: msg.Loss, refusal: str = "") -> Iterator[Output]:
        self.loss = loss
        if refusal:
            yield msg.SendCommand(Welcome(self.protocol.number, refusal=refusal))
        yield msg.CloseLink(DECLINE_LINGER_S if refusal else 0.0)
        yield Changed()
        if self.protocol.hello is not None:
            yield IncarnationLost(self.protocol.worker, self.protocol.number, loss.reason, loss.origin, loss.asked)

    def _settle(self, loss: msg.Loss | None, now: float) -> Iterator[Output]:
        """End it in that way, if one is given."""
        if loss is None:
            return
        if not loss.asked:
            yield from self.lose(loss, now)
            return
        hello, bye = self.protocol.hello, self.protocol.bye
        if hello is not None and bye is None and not self.protocol.joins and not self.ending:
            yield msg.SendCommand(Stop())
        yield from self._end_process(0.0 if hello is None else self._patience(now))

    def _end_process(self, ask_s: float) -> Iterator[Output]:
        if not self.ending:
            self.ending = True
            yield msg.EndIncarnation(ask_s)

    def _patience(self, now: float) -> float:
        """Seconds left for it to end by itself."""
        limit, by = self._deadlines.stop, self.protocol.leave_by
        return limit if by is None else max(0.0, min(by - now, limit))

    def _end(self, now: float) -> msg.Loss | None:
        """Return how it ended or is about to end by itself, once that is known."""
        asked, bye, exited = self.protocol.leave_by is not None, self.protocol.bye, self._exited
        if bye is not None:
            if asked and bye.reason is ByeReason.STOPPED:
                return LEFT
            text = f"it left ({bye.reason})" + (f": {bye.text}" if bye.text else "")
            origin = Origin.OUTSIDE if bye.reason in _ENDED_BY_OTHERS else Origin.WITHIN
            return msg.Loss(text, origin, lasting=bye.reason is ByeReason.LOAD_REFUSED)
        if now < self._settle_at:
            return None
        if exited is not None:
            # Asked to leave with work to finish, it must send a `Bye`.
            broke_off = self.protocol.ready is not None and not exited.clean
            return LEFT if asked and not broke_off else msg.Loss(f"its process {exited.reason}", exited.origin)
        assert self._link_lost is not None
        return LEFT if asked else msg.Loss(f"its link was lost: {self._link_lost.reason}", self._link_lost.origin)

    # Deadlines.

    def _observe(self, observed: msg.Observation, now: float) -> Iterator[Output]:
        if now >= self._observe_at:
            self._observe_at = now + self._observe_s
        if now >= self._grace_until:
            self._grace_until = math.inf
            yield GraceEnded(self.protocol.worker, self.protocol.number)
        yield from self._settle(self._end(now) or self._suspension(observed, now) or self._lateness(observed, now), now)

    def _suspension(self, observed: msg.Observation, now: float) -> msg.Loss | None:
        """Detect a lasting suspension: a process that is stopped for moments only sends frames in between."""
        if not observed.suspended:
            self._suspended_since = None
        elif self._suspended_since is None or self.protocol.last_frame > self._suspended_since:
            self._suspended_since = now
        limit = self._deadlines.suspended
        if self._suspended_since is None or now - self._suspended_since < limit:
            return None
        return msg.Loss(f"it was suspended for {limit:g} s", Origin.OUTSIDE)

    def _lateness(self, observed: msg.Observation, now: float) -> msg.Loss | None:
        check_s, since_s = self._deadlines.check_s, now - self._checked_at
        if since_s < check_s and not self._stood_still:
            return None
        # If this process stood still, so did the link's thread: what was sent is yet to arrive. Excused once, or again
        # if something has arrived since: this process may be stopped and continued many times.
        arrived = self.protocol.last_frame > self._checked_at
        self._stood_still = since_s > 2 * check_s and (arrived or not self._stood_still)
        self._checked_at = now
        if self._stood_still:
            self._observe_at = min(self._observe_at, now + self._deadlines.observe_s)
            return None
        if self.protocol.leave_by is not None and now >= self.protocol.leave_by:
            return LEFT
        if observed.dropped:
            return msg.Loss("it sent a message that breaks the link's bounds")
        late = self.protocol.overdue(now) or self._output.overdue(now, self.protocol.hang_s)
        if late is None:
            return None
        # A start that hangs is no kill, where the system does not report the state of the process.
        unknown = observed.hang_origin is Origin.UNKNOWN and self.protocol.ready is None
        return msg.Loss(late, Origin.WITHIN if unknown else observed.hang_origin)
