"""Supervises one worker process of this machine: spawn, handshake, progress watch, end, restart.

The actor system restarts its incarnations by the policy, each with a fresh process, socket folder and link.
"""

from collections.abc import Callable, Sequence

from actors.supervision.incarnation_actor import WorkerFailed
from actors.supervision.policy import Decision, FailureRecord, GiveUp, Policy, Restart, RestartPolicy
from actors.supervision.process_incarnation import ProcessIncarnation
from actors.supervision.supervisor import Supervisor
from actors.supervision.worker import Deadlines, Worker, WorkerListener, WorkerState, WorkerStatus, WorkerUnavailable
from actors.system import ActorSystem
from actors.transport.rejections import Refusals

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

MAX_FAILED_STARTS = 5
"""Failed starts in a row after which a worker is given up. The policy's window alone would never do so where a start
takes minutes before it fails."""


class WorkerProcess(Supervisor):
    """A `Worker` on this machine, kept alive."""

    def __init__(
        self,
        name: str,
        command: CommandLine,
        listener: WorkerListener,
        *,
        policy: Policy | None = None,
        deadlines: Deadlines | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        """`command(endpoint, incarnation)` gives the program and its arguments, for the next incarnation."""
        super().__init__(name, listener, policy=policy or RestartPolicy(), deadlines=deadlines, refusals=refusals)
        self.command = command
        self._failed_starts = 0

    async def run(self) -> None:
        """Keep the worker running until it was stopped, or was given up. A cancel stops it, within the deadlines.

        May be called again after it has returned.
        """
        if self._stop_requested:
            self._stop_requested = False
            return
        self._failed_starts = 0
        try:
            while not self._stop_requested:
                await self._run_once()
                if not self._restart_requested:
                    break
        finally:
            self.ended()

    async def _run_once(self) -> None:
        """From one incarnation through all that follow a failure, to an end that was asked for, or a decision."""
        self.record = FailureRecord(self.policy)
        try:
            async with ActorSystem() as system:
                self._ref = system.spawn(
                    f"worker {self.name}",
                    lambda: ProcessIncarnation(self),
                    judge=self.judge,
                    stop_timeout=self.deadlines.stop + self.deadlines.term + 10.0,
                    observer=self._decided,
                )
        finally:
            self._ref = None

    def _decided(self, failure: Exception, decision: Decision) -> None:
        self.failed(failure)
        if self._was_ready:
            self._failed_starts = 0
        elif not self.waits_for_room(failure):
            self._failed_starts += 1
        self._was_ready = False
        if isinstance(decision, Restart):
            if self._stop_requested and self._ref is not None:
                self._ref.stop()  # it was to leave for good: it is not started again because it failed to
                return
            if self._failed_starts >= MAX_FAILED_STARTS and self._ref is not None:
                self._ref.stop()
                decision = GiveUp(f"failed {self._failed_starts} starts in a row")
        if isinstance(decision, Restart):
            self._restarts += 1
            self.log.warning("worker_restarts", reason=str(failure), delay_s=decision.delay_s)
            self.enter(WorkerState.BACKOFF, str(failure))
        else:
            self.give_up(decision, failure)
