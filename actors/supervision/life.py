"""A worker's life over all its incarnations, as a state machine: inputs and times in, decisions out.

Pure but for its log: it starts nothing, sends nothing and reads no clock. `actors.supervision.worker_actor` does.
"""

import math
from collections.abc import Iterable, Sequence

import structlog

from actors.join.request import JoinRequest
from actors.process.exit_cause import Origin
from actors.supervision import messages as msg
from actors.supervision.conversation import Conversation
from actors.supervision.deadlines import Deadlines
from actors.supervision.incarnation import Changed, Incarnation, Moment
from actors.supervision.restart_policy import MAX_REMEMBERED, FailureRecord, Restart, RestartPolicy
from actors.supervision.worker import LastFailure, WorkerChanged, WorkerState, WorkerStatus, WorkerUnavailable
from actors.transport.rejections import Rejection, Rejections
from protocol.commands import Cancel, Command, Drain, Stop
from protocol.events import Gauges

TAKE_OVER_S = 5.0
"""A remote worker that has sent nothing for this long (it sends a heartbeat each second) is dropped for the same one
that joins anew: its machine has lost the connection, ours has not noticed. A livelier one stays: two workers share a
key by mistake."""
PATIENT = RestartPolicy(max_failures=MAX_REMEMBERED)
"""Never gives up: with its delays, so many failures cannot be within its window. A network may fail for long."""


class Life:
    """Owns what is known of one worker. It is idle (stopped, given up, or not started yet), has an incarnation that
    runs or is being ended, or waits for the time of the next start.

    One that `joins` runs on another machine: nobody here can start or kill it. It comes with a join request, and is
    left by closing its link.
    """

    def __init__(
        self,
        name: str,
        *,
        joins: bool = False,
        policy: RestartPolicy | None = None,
        deadlines: Deadlines | None = None,
        rejections: Rejections | None = None,
    ) -> None:
        self.name = name
        self.deadlines = deadlines or Deadlines()
        self.rejections = rejections or Rejections()
        self._joins = joins
        policy = policy or (PATIENT if joins else RestartPolicy())
        self._record = FailureRecord(policy, self.deadlines.shortage, joins=joins)
        self._log = structlog.get_logger("worker").bind(worker=name)
        self._out: list[msg.Decision] = []
        self._state = WorkerState.STOPPED  # while there is no incarnation
        self._reason = ""
        self._running = False
        self._start_at = math.inf
        self._number = 0
        self._restarts = 0
        self._current: Incarnation | None = None
        self._last_failure: LastFailure | None = None
        self._stop_asked = False
        self._restart_asked = False  # while an incarnation that had failed was being ended
        self._request: JoinRequest | None = None  # admitted, and waits for the end of the incarnation before

    @property
    def status(self) -> WorkerStatus:
        """The worker now."""
        there = self._current
        seen = there.seen if there is not None and there.loss is None else None
        state, reason, running = self._standing(None if there is None else there.loss)
        return WorkerStatus(
            name=self.name,
            state=state if seen is None else seen.state,
            pid=None if seen is None or there is None else there.pid,
            incarnation=self._number,
            restarts=self._restarts,
            hello=seen.hello if seen else None,
            ready=seen.ready if seen else None,
            gauges=seen.gauges if seen else Gauges(),
            loading=seen.loading if seen else None,
            last_progress=seen.last_progress if seen else 0.0,
            reason=reason,
            last_frame=seen.last_frame if seen else math.inf,
            hang_s=seen.hang_s if seen else 0.0,
            address=there.address if seen is not None and there is not None else "",
            last_failure=self._last_failure if there is None else there.failure or self._last_failure,
            running=running,
        )

    @property
    def number(self) -> int:
        """Of the latest incarnation."""
        return self._number

    @property
    def running(self) -> bool:
        """It is kept alive: started, and neither stopped nor given up since."""
        return self._running

    @property
    def ending(self) -> bool:
        """The latest incarnation is being ended."""
        return self._current is not None and self._current.ending

    @property
    def due(self) -> float:
        """When the next `Look` is to be taken."""
        if self._current is not None:
            return self._current.due
        return self._start_at if self._running and not self._joins else math.inf

    def gone(self, incarnation: int) -> bool:
        """That incarnation takes no more part: another one follows, or none."""
        there = self._current
        return self._number != incarnation or there is None or there.loss is not None

    def check_sendable(self, commands: Sequence[Command]) -> None:
        """Raises `WorkerUnavailable`. A draining worker still takes cancels."""
        there = self._current
        if there is None or there.loss is not None:
            status = self.status
            raise WorkerUnavailable(f"worker {self.name!r} is {status.state}: {status.reason or 'no process'}")
        state = there.seen.state
        drains = state is WorkerState.DRAINING and all(isinstance(each, Cancel) for each in commands)
        if state is not WorkerState.READY and not drains:
            raise WorkerUnavailable(f"worker {self.name!r} is {state}")

    def sent(self, commands: Iterable[Command], now: float) -> None:
        """Note what was sent on behalf of others."""
        if self._current is not None:
            self._current.seen.sent(commands, now)

    def take(self, message: msg.Input, now: float) -> list[msg.Decision]:
        """Take one input: the decisions that follow, in order. What is about an incarnation is about the latest."""
        self._out = []
        match message:
            case msg.StartWorker():
                self._start(now)
            case msg.DrainWorker(grace_s, move_s):
                self._stop_asked = True
                self._leave(_drain(grace_s + move_s), grace_s, move_s, now)
            case msg.StopWorker():
                self._stop_asked = True
                self._leave(Stop(), 0.0, 0.0, now)
            case msg.RestartWorker(grace_s, move_s):
                if self._running and not self._stop_asked:
                    self._leave(_drain(grace_s + move_s), grace_s, move_s, now)
            case msg.Exempt(incarnation):
                self._record.exempt(incarnation)
            case msg.Admit(request):
                self._admit(request, now)
            case _ if self._current is not None:
                self._observe(self._current, message, now)
            case msg.Look() if now >= self.due:
                self._begin(now)
        return self._out

    def _observe(self, current: Incarnation, message: msg.Input, now: float) -> None:
        """What is about the incarnation that there is."""
        match message:
            case msg.Ended() if current.ending:
                self._do(current.ended())
                assert current.loss is not None
                self._follow(current, current.loss, now)
            case _:
                self._do(current.take(message, now))
                if current.seen.ready is not None:
                    self._record.ready(self._number)

    def _do(self, moments: Iterable[Moment]) -> None:
        """Note what is to be done, and the status as it is at each of its changes."""
        self._out.extend(WorkerChanged(self.status) if isinstance(each, Changed) else each for each in moments)

    # Starts.

    def _start(self, now: float) -> None:
        if not self._running:
            self._running, self._stop_asked = True, False
            self._record.forget()
            self._wait(0.0, now)

    def _wait(self, delay_s: float, now: float) -> None:
        """For the time of the next start, or for a join request."""
        self._start_at = now + delay_s
        if self._request is not None or (not self._joins and not delay_s):
            self._begin(now)

    def _begin(self, now: float) -> None:
        request, self._request = self._request, None
        self._number += 1
        self._reason = ""
        seen = Conversation(self.name, self._number, self.deadlines, now, joins=self._joins)
        self._current = Incarnation(seen, self.deadlines, self.rejections, now)
        self._out.append(msg.StartIncarnation(self._number, request))

    def _admit(self, request: JoinRequest, now: float) -> None:
        why = self._objection(now)
        if why is not None:
            self._log.warning("worker_declined", address=request.address, reason=why)
            self.rejections.count(Rejection.TAKEN)
            self._out.append(msg.DeclineJoin(request, why))
            return
        self._request = request
        if self._current is None:
            self._begin(now)
        elif not self._current.ending:
            why = f"it came again, after it had said nothing for {TAKE_OVER_S:g} s"
            self._do(self._current.lose(msg.Loss(why, Origin.OUTSIDE), now))

    def _objection(self, now: float) -> str | None:
        """Why a worker must not join now, in words."""
        there = self._current
        if self._stop_asked or not self._running:
            return f"worker {self.name!r} was stopped here, until somebody restarts it: {self._reason or 'stopped'}"
        if there is None and now < self._start_at:
            return f"worker {self.name!r} failed lately ({self._reason}): come again in {self._start_at - now:.1f} s"
        lives = there is not None and there.loss is None and now - there.seen.last_frame < TAKE_OVER_S
        if lives or self._request is not None:
            return f"worker {self.name!r} is here already: each worker needs a key of its own"
        return None

    # Ends.

    def _leave(self, command: Command, grace_s: float, move_s: float, now: float) -> None:
        current = self._current
        if current is None:
            if self._stop_asked and self._running:
                self._idle(WorkerState.STOPPED, "stopped")
            elif self._running and not self._joins:
                self._record.forget()
                self._begin(now)
        elif current.ending:
            self._restart_asked = current.loss is not None and not self._stop_asked
        elif self._joins and isinstance(command, Stop):
            self._do(current.leave_now(now))
        else:
            self._do(current.leave(command, grace_s, move_s, now))

    def _standing(self, loss: msg.Loss | None) -> tuple[WorkerState, str, bool]:
        """State, reason and whether it is kept alive, of a worker whose incarnation ended so."""
        if loss is None:
            return self._state, self._reason, self._running
        if not loss.asked:
            return WorkerState.BACKOFF, loss.reason, True
        if self._stop_asked:
            return WorkerState.STOPPED, loss.reason, False
        return WorkerState.BACKOFF, "it is started again, as asked", True

    def _follow(self, current: Incarnation, loss: msg.Loss, now: float) -> None:
        """Decide what follows when nothing is left of an incarnation."""
        again = loss.asked or self._restart_asked
        self._current, self._restart_asked = None, False
        self._state, self._reason, self._running = self._standing(loss)
        self._last_failure = current.failure or self._last_failure
        if self._stop_asked:
            self._idle(WorkerState.STOPPED, "stopped")
            return
        if again:
            self._record.forget()
            self._restarts += not loss.asked
            self._wait(0.0, now)
            return
        decision = self._record.failed(loss, self._number, now)
        if isinstance(decision, Restart):
            event = "worker_awaited" if self._joins else "worker_restarts"
            self._log.warning(event, reason=loss.reason, delay_s=decision.delay_s)
            self._restarts += 1
            self._wait(decision.delay_s, now)
        else:
            self._log.info("worker_given_up", reason=loss.reason, decision=decision.reason)
            self._idle(WorkerState.GIVEN_UP, f"{decision.reason}: {loss.reason}")

    def _idle(self, state: WorkerState, reason: str) -> None:
        told = self._state, self._reason, self._running
        self._state, self._reason, self._running = state, reason, False
        if told != (state, reason, False):
            self._do([Changed()])
        self._log.info("worker_ended", state=state, reason=reason)
        if self._request is not None:
            self._out.append(msg.DeclineJoin(self._request, reason))
            self._request = None


def _drain(grace_s: float) -> Drain:
    return Drain(grace_ms=max(0, int(grace_s * 1000)))
