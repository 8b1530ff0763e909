"""One incarnation that is a process of this machine: its spawn, its socket, its end."""

import os
from typing import TYPE_CHECKING

import anyio

from actors.process.child import ChildProcess
from actors.process.exit_cause import Origin
from actors.process.logs import forward
from actors.process.suspension import Suspension
from actors.supervision.incarnation import PeerMisbehaved
from actors.supervision.incarnation_actor import IncarnationActor, WorkerFailed
from actors.supervision.worker import WorkerState
from actors.transport.endpoint import LocalEndpoint
from actors.transport.link import Link
from actors.transport.rate_limit import PeerRate
from protocol.commands import Stop

if TYPE_CHECKING:
    from actors.supervision.worker_process import WorkerProcess

LAST_WORDS_S = 1.0
"""How long the frames of a process that has exited may take to arrive."""
EXIT_LAG_S = 1.0
"""How long its exit may lag behind its link's end: the kernel closes a process's sockets just before it tells, but on a
busy machine others may run in between. Who ended it is known only by its exit."""

LOOKS = 4
"""At whether it is suspended, in the time for which it may be."""

KEPT_FROM_WORKERS = frozenset({"BATON_API_KEY", "BATON_ADMIN_KEY"})
"""Variables that no worker needs: it runs native code on what a checkpoint and a client gave it."""


class ProcessIncarnation(IncarnationActor):
    """One process from its spawn to its reaping. Owns the process and the socket folder."""

    def __init__(self, worker: "WorkerProcess") -> None:
        super().__init__(worker)
        self._command = worker.command
        self._endpoint: LocalEndpoint | None = None
        self._child: ChildProcess | None = None

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    async def started(self) -> None:
        seen = self.seen
        self._endpoint = LocalEndpoint()
        self._link = Link.bind(
            self._endpoint.address,
            self._heard,
            on_lost=self.link_lost,
            rate=PeerRate(),
            on_refused=self._worker.refusals.count,
        )
        argv = self._command(self._endpoint.address, seen.number)
        env = {name: value for name, value in os.environ.items() if name not in KEPT_FROM_WORKERS}
        self._child = ChildProcess.spawn(argv, lambda line: forward(line, seen.worker, seen.number), env)
        self._log.info("worker_started", pid=self._child.pid)
        self._worker.changed()
        self.context.start_soon(self._watch_exit, self._child, self._link)
        self.context.start_soon(self._watch_link, self._child, self._link)
        self.context.start_soon(self._watch_deadlines, self._link)
        self.context.start_soon(self._watch_suspension, self._child)
        self.context.start_soon(self._watch_faults)

    async def stopped(self, failure: Exception | None) -> None:
        """Ask, wait, kill. After a failure the listener hears of the loss first: nothing more can come."""
        try:
            if failure is not None:
                self._lose(WorkerState.BACKOFF, failure)
            elif self.seen.leave_by is None:  # cancelled
                self.seen.leave(anyio.current_time() + self._limits.stop)
            if self._child is not None:
                running = self._child.returncode is None and self.seen.hello is not None
                asked = self._leaves or (running and self._ask(Stop()))
                code = await self._child.end(ask_s=self._patience() if asked else 0.0, term_s=self._limits.term)
                self._log.info("worker_exited", pid=self._child.pid, status=code)
                if self._link is not None:
                    self._link.drain_now()
        finally:
            self._lose(WorkerState.STOPPED, None)
            if self._endpoint is not None:
                self._endpoint.remove()

    def hang_origin(self) -> Origin:
        """By the state of its process: one that was suspended hangs for no reason of its own."""
        return Origin.UNKNOWN if self._child is None else self._child.hang_origin

    def check_peer(self) -> None:
        """Raise `PeerMisbehaved` when not the child but somebody else has connected to its socket."""
        pid = None if self._link is None else self._link.peer_pid
        if pid is not None and self._child is not None and not self._child.owns(pid):
            raise PeerMisbehaved(f"process {pid} said Hello, which was not started here")

    def greeted(self) -> None:
        """A link is made once: nobody else need find its socket, and a gateway that is killed leaves no file."""
        if self._endpoint is not None:
            self._endpoint.remove()

    def _patience(self) -> float:
        """Seconds left to leave by itself; the whole time when nobody has asked before."""
        by = self.seen.leave_by
        return self._limits.stop if by is None else max(0.0, min(by - anyio.current_time(), self._limits.stop))

    async def _watch_exit(self, child: ChildProcess, link: Link) -> None:
        await child.wait()
        if self.seen.hello is not None:
            with anyio.move_on_after(LAST_WORDS_S):
                await self._link_lost.wait()
            link.drain_now()
        if self._fault is not None:
            return
        if self.seen.leave_by is None or self._broke_off(child):
            raise WorkerFailed(f"its process {child.describe_exit()}", child.origin)
        self.context.stop()

    def _broke_off(self, child: ChildProcess) -> bool:
        """It had work to finish before it was to leave, and exited without its `Bye`: a death like any other."""
        return self.seen.ready is not None and self.seen.bye is None and child.returncode != 0

    async def _watch_link(self, child: ChildProcess, link: Link) -> None:
        """A connection that ended is mostly an exit that is not known yet; if not, the process cannot be reached any
        more."""
        await self._link_lost.wait()
        if not link.cut_off:
            with anyio.move_on_after(EXIT_LAG_S):
                await child.wait()
                return
        if self.seen.leave_by is None:
            raise WorkerFailed(f"its link was lost: {self._loss}")

    async def _watch_suspension(self, child: ChildProcess) -> None:
        """No deadline of its own work has to pass first: it cannot go on by itself."""
        limit = self._limits.suspended
        suspension = Suspension(limit)
        while True:
            await anyio.sleep(limit / LOOKS)
            self.hear_now()
            if suspension.look(child.suspended, self.seen.last_frame, anyio.current_time()):
                raise WorkerFailed(f"it was suspended for {limit:g} s", Origin.OUTSIDE)
