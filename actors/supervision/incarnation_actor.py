"""One incarnation of a worker as an actor: its link and its watch, the same for a process here and one elsewhere.

Frames are judged and handed on inside the link's callback, synchronously, so that a listener hears them in order and
at once; what takes time (waiting for an exit, killing) is in the actor's tasks.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio

from actors.actor import Actor, Unrecoverable
from actors.process.exit_cause import Origin
from actors.supervision.incarnation import Incarnation, PeerMisbehaved, PeerRefused
from actors.supervision.worker import WorkerState, WorkerUnavailable
from actors.transport.link import Link, LinkClosed, LinkFull, MessageRefused
from actors.transport.rejections import Refusal
from protocol.codec import decode_event, encode
from protocol.commands import Cancel, Command, Stop, Welcome
from protocol.errors import ByeReason, ProtocolError
from protocol.events import Bye, Failed, Finished, Heartbeat, Hello, Loading, Ready, Step

if TYPE_CHECKING:
    from actors.supervision.supervisor import Supervisor

REFUSAL_LINGER_S = 0.1
"""How long a refusal may take to leave; the event loop waits for it, in the rare case that there is one."""


_ENDED_BY_OTHERS = frozenset({ByeReason.STOPPED, ByeReason.KILLED})


class WorkerFailed(Exception):
    """Why an incarnation ended without having been asked to: it exited, hung, or broke the protocol."""

    def __init__(self, text: str, origin: Origin = Origin.WITHIN) -> None:
        super().__init__(text)
        self.origin = origin


class WorkerRefused(Unrecoverable):
    """Another start would end just so: the program speaks another protocol version, or can never load its model."""


class IncarnationActor(Actor[None]):
    """From the start to the end of one incarnation. Owns the link; what else there is, a subclass owns."""

    def __init__(self, worker: "Supervisor", *, joins: bool = False) -> None:
        self._worker = worker
        self._limits = worker.deadlines
        number = worker.next_incarnation(self)
        self.seen = Incarnation(worker.name, number, worker.deadlines, anyio.current_time(), joins=joins)
        self._log = worker.log.bind(incarnation=number)
        self._link: Link | None = None
        self._fault: Exception | None = None
        self._faulted = anyio.Event()
        self._leaves = False  # it said Bye or was refused: it is about to go by itself
        self._link_lost = anyio.Event()
        self._loss = ""

    @property
    def pid(self) -> int | None:
        """Of the process, on its own machine."""
        raise NotImplementedError

    @property
    def address(self) -> str:
        """Where it connected from; empty for a process of this machine."""
        return ""

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
                    self.check_peer()
                self.seen.receive(event, now)
            except (ProtocolError, PeerMisbehaved) as error:
                self._drop(error)
                return
            worker = self._worker
            if isinstance(event, Step | Heartbeat | Finished | Failed):
                worker.notify(worker.listener.worker_event, worker.name, self.seen.number, event)
            elif isinstance(event, Hello | Loading | Ready | Bye):
                self._note(event)
            if self._fault is None and before != (self.seen.state, self.seen.loading):
                worker.changed()

    def hear_now(self) -> None:
        """Hear what has arrived: what a stalled loop of ours has not read yet is not the worker's fault."""
        if self._link is not None:
            self._link.drain_now()

    def link_lost(self, reason: str) -> None:
        """What the link is to call."""
        self._loss = reason
        self._link_lost.set()

    def hang_origin(self) -> Origin:
        """Called when a deadline has passed: who is to blame that it does not get on."""
        raise NotImplementedError

    def check_peer(self) -> None:
        """Called before a `Hello` is taken. Raise `PeerMisbehaved` when somebody else has connected."""

    def greeted(self) -> None:
        """Called when a `Hello` was answered."""

    def _note(self, event: Hello | Loading | Ready | Bye) -> None:
        if isinstance(event, Hello):
            self._log.info("worker_hello", pid=event.pid, model=event.model, backend=event.backend, device=event.device)
            if not self._ask(Welcome(incarnation=self.seen.number)):
                self._fail(WorkerFailed("it could not be welcomed"))
            self.greeted()
        elif isinstance(event, Ready):
            self._log.info("worker_ready", load_ms=event.load_ms, device=event.device, hang_s=self.seen.hang_s)
        elif isinstance(event, Bye):
            self._leaves = True
            self._log.info("worker_bye", reason=event.reason, text=event.text)
            if self.seen.leave_by is None or event.reason is not ByeReason.STOPPED:
                text = f"it left ({event.reason})" + (f": {event.text}" if event.text else "")
                never = event.reason is ByeReason.LOAD_REFUSED
                origin = Origin.OUTSIDE if event.reason in _ENDED_BY_OTHERS else Origin.WITHIN
                self._fail(WorkerRefused(text) if never else WorkerFailed(text, origin))
            else:
                self.context.stop()

    def _drop(self, error: ProtocolError | PeerMisbehaved) -> None:
        """Hear nothing more from a peer that broke the protocol; tell it why when it can still be told."""
        self._log.warning("worker_frame_refused", reason=str(error))
        self._worker.refusals.count(error.kind if isinstance(error, PeerRefused) else Refusal.FRAME)
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
            self._lose(WorkerState.BACKOFF, failure, linger_s)

    def _lose(self, state: WorkerState, failure: Exception | None, linger_s: float = 0.0) -> None:
        """Close the link and report the loss, once: the closed link is the mark. Without a failure it was stopped."""
        link, self._link = self._link, None
        if link is None:
            return
        link.close(linger_s)
        if failure is not None:
            self._worker.failed(failure)
        reason = "stopped" if failure is None else str(failure)
        self._worker.enter(state, reason)
        if self.seen.hello is not None:
            lost = self._worker.listener.worker_lost
            self._worker.notify(lost, self._worker.name, self.seen.number, reason, origin_of(failure))

    async def _watch_faults(self) -> None:
        await self._faulted.wait()
        assert self._fault is not None
        raise self._fault

    async def _watch_deadlines(self, link: Link) -> None:
        limits = self._limits
        tick = min(limits.hello, limits.loading, limits.beat, limits.idle, limits.hang, limits.stop, 4.0) / 4
        now, stood_still = anyio.current_time(), False
        while True:
            before = now
            await anyio.sleep(tick)
            self.hear_now()
            now = anyio.current_time()
            # When this process stood still, the link's thread did too: what was said meanwhile is yet to come. Once.
            stood_still = now - before > 2 * tick and not stood_still
            if stood_still:
                continue
            if self.seen.must_be_gone(now):
                self.context.stop()
                return
            if link.dropped:
                raise WorkerFailed("it sent a message that breaks the link's bounds")
            late = self.seen.overdue(now)
            if late is not None:
                raise WorkerFailed(late, self.hang_origin())


def origin_of(failure: Exception | None) -> Origin:
    """Who ended an incarnation; None is one that ended because it was asked to."""
    if isinstance(failure, WorkerFailed):
        return failure.origin
    return Origin.OUTSIDE if failure is None else Origin.WITHIN
