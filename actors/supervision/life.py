"""The state machine of a worker over all its incarnations: inputs and times in, decisions out.

It does no I/O and reads no clock; it logs, and counts what it rejects. `actors.supervision.worker_actor` carries the
decisions out.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import structlog

from actors.join.request import JoinRequest
from actors.process.exit_cause import Origin
from actors.supervision import messages as msg
from actors.supervision.deadlines import Deadlines
from actors.supervision.incarnation import Changed, Incarnation, Output
from actors.supervision.protocol_state import ProtocolState
from actors.supervision.restart_policy import FailureRecord, Restart, RestartPolicy
from actors.supervision.worker import LastFailure, WorkerChanged, WorkerState, WorkerStatus, WorkerUnavailable
from actors.transport.rejections import Rejection, Rejections
from protocol.commands import Cancel, Command, ReadRows

TAKE_OVER_S = 5.0
"""A remote worker that has sent nothing for this long, although it sends a heartbeat each second, is replaced when it
joins again: its machine has lost the connection. Otherwise two workers share a key by mistake, and the first stays."""
PATIENT = RestartPolicy(max_failures=None)
"""The policy of remote workers, which are never given up for failing too often."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a worker's supervision."""

    policy: RestartPolicy | None = None
    """None: `RestartPolicy()`, or `PATIENT` for a remote one."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    rejections: Rejections = field(default_factory=Rejections)
    """Counts what its links reject."""


class Life:
    """Owns the state of one worker: it is idle (stopped, given up, or not started yet), has an incarnation that runs or
    is being ended, or waits for its next start.

    One that `joins` runs on another machine: it starts with a join request, and ends when its link is closed.
    """

    def __init__(self, name: str, terms: Terms, *, joins: bool) -> None:
        self.name = name
        self.number = 0
        """The number of the latest incarnation."""
        self.running = False
        """True from its start until it is stopped or given up."""
        self._terms = terms
        self._joins = joins
        policy = terms.policy or (PATIENT if joins else RestartPolicy())
        self._record = FailureRecord(policy, terms.deadlines.shortage, joins=joins)
        self._log = structlog.get_logger("worker").bind(worker=name)
        self._out: list[msg.Decision] = []
        self._state, self._reason = WorkerState.STOPPED, ""  # while there is no incarnation
        self._start_at = math.inf
        self._restarts = 0
        self._current: Incarnation | None = None
        self._last_failure: LastFailure | None = None
        self._stop_asked = False
        self._restart_asked = False  # while an incarnation that had failed was being ended
        self._request: JoinRequest | None = None  # admitted, and waits for the end of the incarnation before
        self._status: WorkerStatus | None = None
        """Made when it is asked for, as others read it many times between two messages; None after a change."""

    @property
    def status(self) -> WorkerStatus:
        """The worker now."""
        if self._status is None:
            self._status = self._describe()
        return self._status

    def _describe(self) -> WorkerStatus:
        current = self._current
        state, reason, running = self._standing(None if current is None else current.loss)
        failure = self._last_failure if current is None else current.failure or self._last_failure
        status = WorkerStatus(self.name, state, self.number, self._restarts, reason, failure, running)
        return status if current is None or current.loss is not None else current.describe(status)

    @property
    def ending(self) -> bool:
        """The latest incarnation is being ended."""
        return self._current is not None and self._current.ending

    @property
    def due(self) -> float:
        """The time of the next `Observation`."""
        if self._current is not None:
            return self._current.due
        return self._start_at if self.running and not self._joins else math.inf

    def has_ended(self, incarnation: int) -> bool:
        """True when the watchers know of the end of that incarnation."""
        current = self._current
        return self.number != incarnation or current is None or current.loss is not None

    def check_sendable(self, commands: Sequence[Command]) -> None:
        """Raises `WorkerUnavailable`. A draining worker takes cancels, and gives cache rows away."""
        if self._current is None or self._current.loss is not None:
            status = self.status
            raise WorkerUnavailable(f"worker {self.name!r} is {status.state}: {status.reason or 'no process'}")
        state = self._current.protocol.state
        drains = state is WorkerState.DRAINING and all(isinstance(each, Cancel | ReadRows) for each in commands)
        if state is not WorkerState.READY and not drains:
            raise WorkerUnavailable(f"worker {self.name!r} is {state}")

    def sent(self, commands: Sequence[Command], now: float) -> None:
        """Note commands that were sent for others."""
        if self._current is not None:
            self._status = None
            self._current.sent(commands, now)

    def exempt(self, incarnation: int) -> None:
        """Do not count the end of that incarnation as a failure, whether it has ended yet or not."""
        self._record.exempt(incarnation)

    def take(self, message: msg.Input, now: float) -> list[msg.Decision]:
        """Process one input. Returns the decisions that follow, in order."""
        self._status = None
        self._out, current = [], self._current
        match message:
            case msg.Frames(number) | msg.LinkLost(number) | msg.Exited(number) | msg.Ended(number) if (
                number != self.number
            ):
                pass  # of an earlier incarnation
            case msg.StartWorker():
                if not self.running:
                    self.running, self._stop_asked = True, False
                    self._begin_anew(now)
            case msg.DrainWorker() | msg.StopWorker():
                self._stop_asked = True
                self._leave(message, now)
            case msg.RestartWorker():
                if not self._stop_asked:
                    self._leave(message, now)
            case msg.ProgramChanged():
                self._record.changed(self.number)
            case msg.Admit(request):
                self._admit(request, now)
            case msg.Observation() if current is None:
                if now >= self.due:
                    self._begin(now)
            case msg.Ended() if current is not None and current.ending:
                self._do(current.ended())
                self._follow(current, now)
            case msg.Abandon(reason):
                if current is not None:
                    self._do(current.ended())
                self._current, self._restart_asked = None, False
                self._idle(WorkerState.GIVEN_UP, reason)
            case _ if current is not None:
                self._do(current.take(message, now))
                if current.protocol.ready is not None:
                    self._record.ready(self.number)
        return self._out

    def _do(self, outputs: Iterable[Output]) -> None:
        """Collect decisions, with the status at each of its changes."""
        self._out.extend(WorkerChanged(self._describe()) if isinstance(each, Changed) else each for each in outputs)

    # Starts.

    def _begin_anew(self, now: float) -> None:
        """Start at once, with no failures on record; a remote one may join."""
        self._record.forget()
        self._wait(0.0, now)

    def _wait(self, delay_s: float, now: float) -> None:
        self._start_at = now + delay_s
        if self._request is not None or (not self._joins and not delay_s):
            self._begin(now)

    def _begin(self, now: float) -> None:
        self.number += 1
        self._reason = ""
        protocol = ProtocolState(self.name, self.number, self._terms.deadlines, now, joins=self._joins)
        self._current = Incarnation(protocol, self._terms.deadlines, self._terms.rejections, now)
        self._out.append(msg.StartIncarnation(self.number, self._request))
        self._request = None

    def _admit(self, request: JoinRequest, now: float) -> None:
        why = self._objection(now)
        if why is not None:
            self._log.warning("worker_declined", address=request.address, reason=why)
            self._terms.rejections.count(Rejection.TAKEN)
            self._out.append(msg.DeclineJoin(request, why))
            return
        self._request = request
        if self._current is None:
            self._begin(now)
        elif not self._current.ending:
            why = f"it joined again, after it had sent nothing for {TAKE_OVER_S:g} s"
            self._do(self._current.lose(msg.Loss(why, Origin.OUTSIDE), now))

    def _objection(self, now: float) -> str | None:
        """Return why a worker must not join now."""
        current = self._current
        if self._stop_asked or not self.running:
            return f"worker {self.name!r} was stopped here, until somebody restarts it: {self._reason or 'stopped'}"
        if current is None and now < self._start_at:
            return f"worker {self.name!r} failed lately ({self._reason}): come again in {self._start_at - now:.1f} s"
        lives = current is not None and current.loss is None and now - current.protocol.last_frame < TAKE_OVER_S
        if lives or self._request is not None:
            return f"worker {self.name!r} is here already: each worker needs a key of its own"
        return None

    # Ends.

    def _leave(self, message: msg.DrainWorker | msg.RestartWorker | msg.StopWorker, now: float) -> None:
        current = self._current
        if current is not None and not current.ending:
            self._do(current.leave(message, now))
        elif current is not None:
            self._restart_asked = current.loss is not None and not self._stop_asked
        elif self.running and self._stop_asked:
            self._idle(WorkerState.STOPPED, "stopped")
        elif self.running and not self._joins:
            self._begin_anew(now)

    def _standing(self, loss: msg.Loss | None) -> tuple[WorkerState, str, bool]:
        """State, reason and `running` after an incarnation that ended so."""
        if loss is None:
            return self._state, self._reason, self.running
        if not loss.asked:
            return WorkerState.BACKOFF, loss.reason, True
        if self._stop_asked:
            return WorkerState.STOPPED, loss.reason, False
        return WorkerState.BACKOFF, "it is started again, as asked", True

    def _follow(self, current: Incarnation, now: float) -> None:
        """Decide what follows an incarnation of which nothing is left."""
        loss = current.loss
        assert loss is not None
        again = loss.asked or self._restart_asked
        self._current, self._restart_asked = None, False
        self._state, self._reason, self.running = self._standing(loss)
        self._last_failure = current.failure or self._last_failure
        if self._stop_asked:
            self._idle(WorkerState.STOPPED, "stopped")
        elif again:
            self._restarts += not loss.asked
            self._begin_anew(now)
        elif isinstance(decision := self._record.failed(loss, self.number, now), Restart):
            if self._joins:
                self._log.warning("worker_awaited", reason=loss.reason, delay_s=decision.delay_s)
            else:
                self._log.warning("worker_restarts", reason=loss.reason, delay_s=decision.delay_s)
            self._restarts += 1
            self._wait(decision.delay_s, now)
        else:
            self._log.info("worker_given_up", reason=loss.reason, decision=decision.reason)
            self._idle(WorkerState.GIVEN_UP, f"{decision.reason}: {loss.reason}")

    def _idle(self, state: WorkerState, reason: str) -> None:
        before = self._state, self._reason, self.running
        self._state, self._reason, self.running = state, reason, False
        if before != (state, reason, False):
            self._do([Changed()])
        self._log.info("worker_ended", state=state, reason=reason)
        if self._request is not None:
            self._out.append(msg.DeclineJoin(self._request, reason))
            self._request = None
