"""Supervises a worker that comes over the network and that nobody here can start: waits for it, watches it, lets it go.

Its restarts are its own machine's business; when to let it in again is decided here, by the same policy that delays the
restart of a process.
"""

import anyio

from actors.actor import Ref
from actors.join.request import Arrival
from actors.supervision.policy import MAX_REMEMBERED, Decision, NeverRestart, Policy, Restart, RestartPolicy
from actors.supervision.remote_incarnation import RemoteIncarnation
from actors.supervision.supervisor import Supervisor
from actors.supervision.worker import Deadlines, WorkerListener, WorkerState
from actors.system import ActorSystem
from actors.transport.rejections import Refusal, Refusals

TAKE_OVER_S = 5.0
"""An incarnation that has said nothing for this long (it beats each second) is dropped for the same worker that comes
anew: its machine has lost the connection, ours has not noticed. A livelier one stays: two share a key by mistake."""

PATIENT = RestartPolicy(max_failures=MAX_REMEMBERED)
"""Never gives up: with its delays, so many failures cannot be within its window. A network may fail for long."""


class RemoteWorker(Supervisor):
    """A `Worker` of another machine. Each arrival that is let in is another incarnation."""

    def __init__(
        self,
        name: str,
        listener: WorkerListener,
        *,
        policy: Policy | None = None,
        deadlines: Deadlines | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        super().__init__(name, listener, policy=policy or PATIENT, deadlines=deadlines, refusals=refusals)
        self._not_before = 0.0
        self._away = False
        self._arrival: Arrival | None = None
        self._news = anyio.Event()

    def arrive(self, arrival: Arrival) -> None:
        """Let it in, or decline: when it was told to stay away, comes too soon after a failure, or is here already."""
        why = self._objection()
        if why is not None:
            self.log.warning("worker_declined", address=arrival.address, reason=why)
            self.refusals.count(Refusal.TAKEN)
            arrival.decline(why)
            return
        if isinstance(self._current, RemoteIncarnation):
            self._current.disconnect(f"it came again, after it had said nothing for {TAKE_OVER_S:g} s")
        self._arrival = arrival
        self._wake()

    async def run(self) -> None:
        """See `Supervisor.run`."""
        if self._stop_requested:
            self._stop_requested = False
            return
        self._away = False
        try:
            while not self._stop_requested and self._state is not WorkerState.GIVEN_UP:
                if (arrival := self._arrival) is None:
                    await self._news.wait()
                    self._news = anyio.Event()
                else:
                    self._arrival = None
                    await self._run_once(arrival)
        finally:
            self._away = True
            if self._arrival is not None:
                self._arrival.link.close(0.0)
                self._arrival = None
            self.ended()

    def stop_nowait(self) -> None:
        """Let go of it at once. It is not told to stop: it may serve another gateway, or this one's successor."""
        self._stop_requested = True
        if isinstance(self._current, RemoteIncarnation):
            self._current.disconnect()
        self._wake()

    def drain_nowait(self, grace_s: float) -> None:
        """See `Supervisor.drain_nowait`. It is not let in again before `run` is called again."""
        super().drain_nowait(grace_s)
        self._wake()

    def _objection(self) -> str | None:
        """Why it cannot be let in now, in words."""
        now = anyio.current_time()
        if self._stop_requested or self._away:
            return f"worker {self.name!r} was stopped here, until somebody restarts it: {self._reason or 'stopped'}"
        if now < self._not_before:
            return f"worker {self.name!r} failed lately ({self._reason}): come again in {self._not_before - now:.1f} s"
        current = self._current
        if current is not None:
            current.hear_now()
        if self._arrival is not None or (current is not None and current.seen.silent_s(now) < TAKE_OVER_S):
            return f"worker {self.name!r} is here already: each worker needs a key of its own"
        return None

    async def _run_once(self, arrival: Arrival) -> None:
        try:
            async with ActorSystem() as system:
                self._ref = self._spawn(system, arrival)
        finally:
            self._ref = None
        if not self._stop_requested and self._state is not WorkerState.GIVEN_UP:
            self.enter(WorkerState.BACKOFF, self._reason or "it is waited for")

    def _spawn(self, system: ActorSystem, arrival: Arrival) -> Ref[None]:
        return system.spawn(
            f"worker {self.name}",
            lambda: RemoteIncarnation(self, arrival),
            policy=NeverRestart(),
            observer=self._failed,
        )

    def _failed(self, failure: Exception, _: Decision) -> None:
        self.failed(failure)
        decision = self.judge(failure)
        if isinstance(decision, Restart):
            self._restarts += 1
            self._not_before = anyio.current_time() + decision.delay_s
            self.log.warning("worker_awaited", reason=str(failure), delay_s=decision.delay_s)
            self.enter(WorkerState.BACKOFF, str(failure))
        else:
            self.give_up(decision, failure)

    def _wake(self) -> None:
        self._news.set()
