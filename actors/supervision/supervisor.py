"""What supervises one worker through its incarnations, wherever it runs: its status, its commands, its listener.

Each incarnation is an actor of its own, with a fresh link. Needs asyncio underneath, for the link.
"""

import math
from collections.abc import Callable, Sequence

import anyio
import structlog

from actors.actor import Ref
from actors.process.exit_cause import Origin
from actors.process.shortage import is_shortage
from actors.supervision.incarnation_actor import IncarnationActor, WorkerFailed, origin_of
from actors.supervision.policy import Decision, Escalate, FailureRecord, GiveUp, Policy, Restart
from actors.supervision.worker import (
    Deadlines,
    LastFailure,
    WorkerListener,
    WorkerState,
    WorkerStatus,
    WorkerUnavailable,
)
from actors.transport.rejections import Refusals
from protocol.commands import Command, Drain, Stop
from protocol.events import Gauges


class Supervisor:
    """A `Worker`, kept alive. `run` lives in the caller's task group."""

    def __init__(
        self,
        name: str,
        listener: WorkerListener,
        *,
        policy: Policy,
        deadlines: Deadlines | None,
        refusals: Refusals | None,
    ) -> None:
        self.name = name
        self.listener = listener
        self.deadlines = deadlines or Deadlines()
        self.refusals = refusals or Refusals()
        """Where what its links refuse is counted."""
        self.policy = policy
        self.record = FailureRecord(policy)
        """Its failures, by incarnation."""
        self.log = structlog.get_logger("worker").bind(worker=name)
        self._state = WorkerState.STOPPED
        self._reason = ""
        self._incarnations = 0
        self._current: IncarnationActor | None = None
        self._ref: Ref[None] | None = None
        self._stop_requested = False
        self._restart_requested = False
        self._restarts = 0
        self._was_ready = False
        self._ever_ready = False
        self._last_failure: LastFailure | None = None

    @property
    def status(self) -> WorkerStatus:
        """The worker now."""
        current = self._current
        seen = None if current is None else current.seen
        return WorkerStatus(
            name=self.name,
            state=self._state if seen is None else seen.state,
            pid=None if current is None else current.pid,
            incarnation=self._incarnations,
            restarts=self._restarts,
            hello=seen.hello if seen else None,
            ready=seen.ready if seen else None,
            gauges=seen.gauges if seen else Gauges(),
            loading=seen.loading if seen else None,
            last_progress=seen.last_progress if seen else 0.0,
            reason=self._reason,
            last_frame=seen.last_frame if seen else math.inf,
            hang_s=seen.hang_s if seen else 0.0,
            address="" if current is None else current.address,
            last_failure=self._last_failure,
        )

    def send_nowait(self, commands: Sequence[Command]) -> None:
        """See `Worker`. A draining worker still takes cancels."""
        if self._current is None:
            raise WorkerUnavailable(f"worker {self.name!r} is {self._state}: {self._reason or 'no process'}")
        self._current.send(commands)

    def pardon_nowait(self, incarnation: int) -> None:
        """See `Worker`."""
        self.record.pardon(incarnation)

    def drain_nowait(self, grace_s: float) -> None:
        """Let what is live finish within `grace_s` seconds, then stop for good. Returns at once."""
        self._stop_requested = True
        self._ask_to_leave(_drain(grace_s), grace_s)

    def restart_nowait(self, grace_s: float) -> None:
        """As `drain_nowait`, but another incarnation follows. Does nothing to a worker that does not run, or is to stop
        for good."""
        if self._ref is not None and not self._stop_requested:
            self._restart_requested = True
            self._ask_to_leave(_drain(grace_s), grace_s)

    def stop_nowait(self) -> None:
        """Stop for good: ask, wait for `deadlines.stop`, then kill. Returns at once."""
        self._stop_requested = True
        self._ask_to_leave(Stop(), 0.0)

    async def run(self) -> None:
        """Keep the worker until it was stopped, or was given up. A cancel stops it. May be called again after it has
        returned."""
        raise NotImplementedError

    def next_incarnation(self, actor: IncarnationActor) -> int:
        """Called by an incarnation that starts; its number."""
        self._incarnations += 1
        self._restart_requested = self._was_ready = False
        self._current = actor
        self._reason = ""
        return self._incarnations

    def enter(self, state: WorkerState, reason: str) -> None:
        """No incarnation serves any more."""
        if state is WorkerState.STOPPED and self._restart_requested and not self._stop_requested:
            state, reason = WorkerState.BACKOFF, "it is started again, as asked"
        if (self._current, self._state, self._reason) != (None, state, reason):
            self._current, self._state, self._reason = None, state, reason
            self.changed()

    def failed(self, failure: Exception) -> None:
        """The current incarnation ends unasked. The first failure of one counts: others may be its consequences."""
        last = self._last_failure
        if last is None or last.incarnation != self._incarnations:
            now = anyio.current_time()
            self._last_failure = LastFailure(self._incarnations, str(failure), origin_of(failure), now)

    def judge(self, failure: Exception) -> Decision:
        """Record how the current incarnation failed, and decide. What somebody did from outside to one that was ready
        does not count: it may be killed at any moment, and as often. Nor does a start for which the system has no room,
        of one that was ready before: it is tried until there is some."""
        if self.waits_for_room(failure):
            return Restart(self.deadlines.shortage)
        if self._was_ready and isinstance(failure, WorkerFailed) and failure.origin is Origin.OUTSIDE:
            self.record.pardon(self._incarnations)
        return self.record.failed(anyio.current_time(), self._incarnations)

    def waits_for_room(self, failure: Exception) -> bool:
        """It served before, and now could not be started for something that the system may soon have."""
        return self._ever_ready and is_shortage(failure)

    def give_up(self, decision: GiveUp | Escalate, failure: Exception) -> None:
        """It failed, and nobody tries again. Whoever runs it says what that means."""
        self.log.info("worker_given_up", reason=str(failure), decision=decision.reason)
        self.enter(WorkerState.GIVEN_UP, f"{decision.reason}: {failure}")

    def ended(self) -> None:
        """`run` returns."""
        self._restart_requested = self._stop_requested = False
        if self._state is not WorkerState.GIVEN_UP:
            self.enter(WorkerState.STOPPED, "stopped")
        self.log.info("worker_ended", state=self._state, reason=self._reason)

    def changed(self) -> None:
        """Tell the listener."""
        self._was_ready = self._was_ready or (self._current is not None and self._current.seen.ready is not None)
        self._ever_ready = self._ever_ready or self._was_ready
        self.notify(self.listener.worker_changed, self.status)

    def notify(self, call: Callable[..., None], *args: object) -> None:
        """Call the listener. Its defect must not end the supervision of its worker: it is logged, in full."""
        try:
            call(*args)
        except Exception as error:
            self.log.error("listener_failed", exc_info=error)

    def _ask_to_leave(self, command: Command, grace_s: float) -> None:
        if self._current is not None:
            self._current.leave(command, grace_s)
        elif self._ref is not None:
            self._ref.stop()


def _drain(grace_s: float) -> Drain:
    return Drain(grace_ms=max(0, int(grace_s * 1000)))
