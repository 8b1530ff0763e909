"""Supervises one worker process through its incarnations: spawn, handshake, progress watch, end, restart.

Each incarnation is an actor; the actor system restarts it by the policy, with a fresh process, socket folder and link.
Needs asyncio underneath, for the link.
"""

from collections.abc import Callable, Sequence

import structlog

from actors.actor import Ref
from actors.incarnation_actor import IncarnationActor, WorkerFailed
from actors.supervision import Decision, Policy, Restart, RestartPolicy
from actors.system import ActorSystem
from actors.worker import Deadlines, Worker, WorkerListener, WorkerState, WorkerStatus, WorkerUnavailable
from protocol.commands import Command, Drain, Stop
from protocol.events import Gauges

__all__ = [
    "Deadlines",
    "RestartPolicy",
    "Worker",
    "WorkerFailed",
    "WorkerListener",
    "WorkerProcess",
    "WorkerState",
    "WorkerStatus",
    "WorkerUnavailable",
]

CommandLine = Callable[[str, int], Sequence[str]]


class WorkerProcess:
    """A `Worker` on this machine, kept alive. `run` lives in the caller's task group."""

    def __init__(
        self,
        name: str,
        command: CommandLine,
        listener: WorkerListener,
        *,
        policy: Policy | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        """`command(endpoint, incarnation)` gives the program and its arguments."""
        self.name = name
        self.command = command
        self.listener = listener
        self.deadlines = deadlines or Deadlines()
        self.log = structlog.get_logger("worker").bind(worker=name)
        self._policy = policy or RestartPolicy()
        self._state = WorkerState.STOPPED
        self._reason = ""
        self._incarnations = 0
        self._current: IncarnationActor | None = None
        self._ref: Ref[None] | None = None
        self._stop_requested = False
        self._restart_requested = False
        self._restarts = 0

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
            hang_s=seen.hang_s if seen else 0.0,
        )

    def send_nowait(self, commands: Sequence[Command]) -> None:
        """See `Worker`. A draining worker still takes cancels."""
        if self._current is None:
            raise WorkerUnavailable(f"worker {self.name!r} is {self._state}: {self._reason or 'no process'}")
        self._current.send(commands)

    def drain_nowait(self, grace_s: float) -> None:
        """Let what is live finish within `grace_s` seconds, then stop for good. Returns at once."""
        self._stop_requested = True
        self._ask_to_leave(_drain(grace_s), grace_s)

    def restart_nowait(self, grace_s: float) -> None:
        """As `drain_nowait`, but another incarnation follows, with the `command` of that time. Does nothing to a worker
        that does not run, or is to stop for good."""
        if self._ref is not None and not self._stop_requested:
            self._restart_requested = True
            self._ask_to_leave(_drain(grace_s), grace_s)

    def stop_nowait(self) -> None:
        """Stop for good: ask, wait for `deadlines.stop`, then kill. Returns at once."""
        self._stop_requested = True
        self._ask_to_leave(Stop(), 0.0)

    async def run(self) -> None:
        """Keep the worker running until it was stopped, or was given up. A cancel stops it, within the deadlines.

        May be called again after it has returned.
        """
        if self._stop_requested:
            self._stop_requested = False
            return
        try:
            while not self._stop_requested:
                await self._run_once()
                if not self._restart_requested:
                    break
        finally:
            self._restart_requested = self._stop_requested = False
            if self._state is not WorkerState.GIVEN_UP:
                self.enter(WorkerState.STOPPED, "stopped")
            self.log.info("worker_ended", state=self._state, reason=self._reason)

    async def _run_once(self) -> None:
        """From one incarnation through all that follow a failure, to an end that was asked for, or a decision."""
        try:
            async with ActorSystem() as system:
                self._ref = system.spawn(
                    f"worker {self.name}",
                    lambda: IncarnationActor(self),
                    policy=self._policy,
                    stop_timeout=self.deadlines.stop + self.deadlines.term + 10.0,
                    observer=self._decided,
                )
        finally:
            self._ref = None

    def next_incarnation(self, actor: "IncarnationActor") -> int:
        """Called by an incarnation that starts; its number."""
        self._incarnations += 1
        self._restart_requested = False
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

    def changed(self) -> None:
        """Tell the listener."""
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

    def _decided(self, failure: Exception, decision: Decision) -> None:
        if isinstance(decision, Restart):
            if self._stop_requested and self._ref is not None:
                self._ref.stop()  # it was to leave for good: it is not started again because it failed to
                return
            self._restarts += 1
            self.log.warning("worker_restarts", reason=str(failure), delay_s=decision.delay_s)
            self.enter(WorkerState.BACKOFF, str(failure))
        else:
            self.log.error("worker_given_up", reason=str(failure), decision=decision.reason)
            self.enter(WorkerState.GIVEN_UP, f"{decision.reason}: {failure}")


def _drain(grace_s: float) -> Drain:
    return Drain(grace_ms=max(0, int(grace_s * 1000)))
