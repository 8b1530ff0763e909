"""One worker process as an actor: its spawn, its link, its watch, its end.

Frames are judged and handed on inside the link's callback, synchronously, so that a listener hears them in order and
at once; what takes time (waiting for an exit, killing) is in the actor's tasks.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio

from actors.actor import Actor, Unrecoverable
from actors.endpoint import LocalEndpoint
from actors.incarnation import Incarnation, PeerMisbehaved, PeerRefused
from actors.link import Link, LinkClosed, LinkFull, MessageRefused
from actors.logs import forward
from actors.process import ChildProcess
from actors.worker import WorkerState, WorkerUnavailable
from protocol.codec import decode_event, encode
from protocol.commands import Cancel, Command, Stop, Welcome
from protocol.errors import ByeReason, ProtocolError
from protocol.events import Beat, Bye, Failed, Finished, Hello, Loading, Ready, Step

if TYPE_CHECKING:
    from actors.worker_process import WorkerProcess

LAST_WORDS_S = 1.0
"""How long the frames of a process that has exited may take to arrive, and its exit may lag behind its link's end."""

REFUSAL_LINGER_S = 0.1
"""How long a refusal may take to leave; the event loop waits for it, in the rare case that there is one."""

KEPT_FROM_WORKERS = frozenset({"BATON_API_KEY", "BATON_ADMIN_KEY"})
"""Variables that no worker needs: it runs native code on what a checkpoint and a client gave it."""


class WorkerFailed(Exception):
    """Why an incarnation ended without having been asked to: it exited, hung, or broke the protocol."""


class WorkerRefused(Unrecoverable):
    """Another start would end just so: the program speaks another protocol version, or can never load its model."""


class IncarnationActor(Actor[None]):
    """One process from its spawn to its reaping. Owns the process, the link and the socket folder."""

    def __init__(self, worker: "WorkerProcess") -> None:
        self._worker = worker
        self._limits = worker.deadlines
        self.seen = Incarnation(worker.name, worker.next_incarnation(self), worker.deadlines, anyio.current_time())
        self._log = worker.log.bind(incarnation=self.seen.number)
        self._endpoint: LocalEndpoint | None = None
        self._link: Link | None = None
        self._child: ChildProcess | None = None
        self._fault: Exception | None = None
        self._faulted = anyio.Event()
        self._leaves = False  # it said Bye or was refused: it is about to exit by itself
        self._link_lost = anyio.Event()

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def send(self, commands: Sequence[Command]) -> None:
        """See `Worker.send_nowait`."""
        state = self.seen.state
        allowed = state is WorkerState.READY or (
            state is WorkerState.DRAINING and all(isinstance(command, Cancel) for command in commands)
        )
        if not allowed or self._link is None:
            raise WorkerUnavailable(f"worker {self._worker.name!r} is {state}")
        try:
            self._link.send_nowait([encode(command) for command in commands])
        except (LinkFull, LinkClosed, MessageRefused) as error:
            raise WorkerUnavailable(f"worker {self._worker.name!r}: {error}") from error
        self.seen.sent(commands, anyio.current_time())

    def leave(self, command: Command, grace_s: float) -> None:
        """Ask the worker to leave, and see that it does: at once when it has nothing to finish."""
        if self.seen.ready is None:
            command, grace_s = Stop(), 0.0
        if self.seen.hello is None or not self._ask(command):
            self.seen.leave(anyio.current_time())
            self.context.stop()
        else:
            self.seen.leave(anyio.current_time() + grace_s + self._limits.stop)
        self._worker.changed()

    async def started(self) -> None:
        seen = self.seen
        self._endpoint = LocalEndpoint()
        self._link = Link.bind(self._endpoint.address, self._heard, on_lost=lambda _: self._link_lost.set())
        argv = self._worker.command(self._endpoint.address, seen.number)
        env = {name: value for name, value in os.environ.items() if name not in KEPT_FROM_WORKERS}
        self._child = ChildProcess.spawn(argv, lambda line: forward(line, seen.worker, seen.number), env)
        self._log.info("worker_started", pid=self._child.pid)
        self._worker.changed()
        self.context.start_soon(self._watch_exit, self._child, self._link)
        self.context.start_soon(self._watch_link, self._child)
        self.context.start_soon(self._watch_deadlines, self._link)
        self.context.start_soon(self._watch_faults)

    async def stopped(self, failure: Exception | None) -> None:
        """Ask, wait, kill. After a failure the listener hears of the loss first: nothing more can come."""
        try:
            if failure is not None:
                self._lose(WorkerState.BACKOFF, str(failure))
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
            self._lose(WorkerState.STOPPED, "stopped")
            if self._endpoint is not None:
                self._endpoint.remove()

    def _patience(self) -> float:
        """Seconds left to leave by itself; the whole time when nobody has asked before."""
        by = self.seen.leave_by
        return self._limits.stop if by is None else max(0.0, min(by - anyio.current_time(), self._limits.stop))

    def _ask(self, command: Command) -> bool:
        """Send a command to a worker that may be at any point; false when it cannot be reached."""
        try:
            if self._link is not None:
                self._link.send_nowait([encode(command)])
                return True
        except (LinkFull, LinkClosed) as error:
            self._log.info("worker_not_reached", reason=str(error))
        return False

    def _heard(self, frames: list[bytes]) -> None:
        now = anyio.current_time()
        for frame in frames:
            if self._fault is not None:
                return
            before = self.seen.state, self.seen.loading
            try:
                event = decode_event(frame)
                if isinstance(event, Hello):
                    self._check_peer()
                self.seen.receive(event, now)
            except (ProtocolError, PeerMisbehaved) as error:
                self._drop(error)
                return
            worker = self._worker
            if isinstance(event, Step | Beat | Finished | Failed):
                worker.notify(worker.listener.worker_event, worker.name, self.seen.number, event)
            elif isinstance(event, Hello | Loading | Ready | Bye):
                self._note(event)
            if self._fault is None and before != (self.seen.state, self.seen.loading):
                worker.changed()

    def _check_peer(self) -> None:
        """Raise `PeerMisbehaved` when not the child but somebody else has connected to its socket."""
        pid = None if self._link is None else self._link.peer_pid
        if pid is not None and self._child is not None and not self._child.owns(pid):
            raise PeerMisbehaved(f"process {pid} said Hello, which was not started here")

    def _note(self, event: Hello | Loading | Ready | Bye) -> None:
        if isinstance(event, Hello):
            self._log.info("worker_hello", pid=event.pid, model=event.model, backend=event.backend, device=event.device)
            if not self._ask(Welcome(incarnation=self.seen.number)):
                self._fail(WorkerFailed("it could not be welcomed"))
            if self._endpoint is not None:
                # A link is made once: nobody else need find its socket, and a gateway that is killed leaves no file.
                self._endpoint.remove()
        elif isinstance(event, Ready):
            self._log.info("worker_ready", load_ms=event.load_ms, device=event.device, hang_s=self.seen.hang_s)
        elif isinstance(event, Bye):
            self._leaves = True
            self._log.info("worker_bye", reason=event.reason, text=event.text)
            if self.seen.leave_by is None:
                text = f"it left ({event.reason})" + (f": {event.text}" if event.text else "")
                never = event.reason is ByeReason.LOAD_REFUSED
                self._fail(WorkerRefused(text) if never else WorkerFailed(text))
            else:
                self.context.stop()

    def _drop(self, error: ProtocolError | PeerMisbehaved) -> None:
        """Hear nothing more from a peer that broke the protocol; tell it why when it can still be told."""
        self._log.warning("worker_frame_refused", reason=str(error))
        text = f"it broke the protocol: {error}"
        if isinstance(error, PeerRefused) and self._ask(Welcome(incarnation=self.seen.number, refusal=str(error))):
            self._leaves = True
            self._fail(WorkerRefused(text) if error.lasting else WorkerFailed(text), linger_s=REFUSAL_LINGER_S)
        else:
            self._fail(WorkerFailed(text))

    def _fail(self, failure: Exception, linger_s: float = 0.0) -> None:
        """Fail this actor from a synchronous callback: lost at once, ended by its tasks."""
        if self._fault is None:
            self._fault = failure
            self._faulted.set()
            self._lose(WorkerState.BACKOFF, str(failure), linger_s)

    def _lose(self, state: WorkerState, reason: str, linger_s: float = 0.0) -> None:
        """Close the link and report the loss, once: the closed link is the mark."""
        link, self._link = self._link, None
        if link is None:
            return
        link.close(linger_s)
        self._worker.enter(state, reason)
        if self.seen.hello is not None:
            self._worker.notify(self._worker.listener.worker_lost, self._worker.name, self.seen.number, reason)

    async def _watch_faults(self) -> None:
        await self._faulted.wait()
        assert self._fault is not None
        raise self._fault

    async def _watch_exit(self, child: ChildProcess, link: Link) -> None:
        await child.wait()
        if self.seen.hello is not None:
            with anyio.move_on_after(LAST_WORDS_S):
                await self._link_lost.wait()
            link.drain_now()
        if self._fault is not None:
            return
        if self.seen.leave_by is None:
            raise WorkerFailed(f"its process {child.describe_exit()}")
        self.context.stop()

    async def _watch_link(self, child: ChildProcess) -> None:
        """A lost link is mostly an exit that is not known yet; if not, the process cannot be reached any more."""
        await self._link_lost.wait()
        with anyio.move_on_after(LAST_WORDS_S):
            await child.wait()
            return
        if self.seen.leave_by is None:
            raise WorkerFailed("its link was lost")

    async def _watch_deadlines(self, link: Link) -> None:
        limits = self._limits
        tick = min(limits.hello, limits.loading, limits.beat, limits.hang, limits.stop, 4.0) / 4
        while True:
            await anyio.sleep(tick)
            link.drain_now()  # what a stalled loop of ours has not read yet is not the worker's fault
            now = anyio.current_time()
            if self.seen.must_be_gone(now):
                self.context.stop()
                return
            late = self.seen.overdue(now)
            if link.dropped:
                late = "it sent a message that breaks the link's bounds"
            if late is not None:
                raise WorkerFailed(late)
