"""A worker as an actor: carries out the decisions of its life on its link, its peer and its timer.

Frames, and the notices that follow from them, are handled inside the link's callback. What has arrived on the link is
handled before a deadline or an exit is.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence

import anyio

from actors.actor import Actor, ActorStopped, Context, DeferredReplies, OnFailure, Ref, ReplyTo
from actors.join.request import JoinRequest
from actors.mailbox import MailboxFull
from actors.process.child import SpawnFailed
from actors.process.exit_cause import Origin
from actors.supervision import messages as msg
from actors.supervision.life import Life, Terms
from actors.supervision.local import CommandLine, LocalPeer, is_shortage
from actors.supervision.peer import Peer
from actors.supervision.remote import RemotePeer
from actors.supervision.worker import WorkerEvent, WorkerState, WorkerStatus, WorkerUnavailable
from actors.transport.endpoint import EndpointError
from actors.transport.link import Link, LinkClosed, LinkFull, MessageRefused
from protocol.bounds import MAX_ROWS_BYTES
from protocol.codec import encode_commands
from protocol.commands import Command, ReadRows

MAX_DELAYS = 256
"""Turns of the event loop by which a deadline is delayed at most, for messages that had arrived before it."""
END_S = 10.0
"""Time to stop beyond the deadlines that the worker has for it; it is killed before."""


class WorkerRef:
    """The handle of a worker. `ref` takes `WorkerMessage`; the methods act at once, also inside a handler."""

    def __init__(self, actor: "WorkerActor", ref: Ref[msg.WorkerMessage]) -> None:
        self.name = ref.name
        self.ref = ref
        self._actor = actor

    @property
    def status(self) -> WorkerStatus:
        """The status after the messages handled so far."""
        return self._actor.life.status

    def send_nowait(self, commands: Sequence[Command]) -> None:
        """Send commands as one message. Raises `WorkerUnavailable` when it is not READY (or DRAINING, for cancels), or
        the link is full."""
        self._actor.send_nowait(commands)

    def exempt_nowait(self, incarnation: int) -> None:
        """Do not count the end of that incarnation as a failure."""
        self._actor.life.exempt(incarnation)

    def kill_nowait(self) -> bool:
        """Kill its process, as somebody else would: what follows is what follows any death, but it does not count as a
        failure of the worker. False if it has no process on this machine."""
        return self._actor.kill_nowait()


def spawn_worker(context: Context, name: str, terms: Terms, command: CommandLine | None = None) -> WorkerRef:
    """Supervise a worker as a child of that actor: a process started by `command`; without one, a remote worker that
    sends a `JoinRequest`. A failure of the worker's actor counts as one of its incarnation."""
    peer = RemotePeer(name, terms) if command is None else LocalPeer(name, command, terms)
    actor = WorkerActor(Life(name, terms, joins=command is None), peer)
    stop_s = terms.deadlines.stop + terms.deadlines.term + END_S
    return WorkerRef(actor, context.spawn(name, actor, on_failure=OnFailure.RESTART, stop_s=stop_s))


class WorkerActor(Actor[msg.WorkerMessage]):
    """Owns the link and the timer of one worker. Its watchers get `WorkerNotice` messages."""

    def __init__(self, life: Life, peer: Peer) -> None:
        self.life = life
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._delays = 0
        self._reports: deque[msg.WorkerReport] = deque()
        """Those that wait until what had arrived on the link before them has been handled."""
        self._report_delays = 0
        self._deferred = DeferredReplies()
        self._idle = anyio.Event()
        self._ended_again = 0  # the number of the last incarnation whose end had failed

    def handle(self, message: msg.WorkerMessage) -> None:
        """See `WorkerMessage`."""
        life, number = self.life, self.life.number
        match message:
            case JoinRequest():
                self._loop.call_soon(self._report, msg.Admit(message))
            case msg.Due():
                self._take(self._observe())
            case msg.AwaitReady(after, reply):
                self._await(reply, lambda: life.number > after and life.status.state is WorkerState.READY)
            case msg.RestartWorker(reply=answer):
                self._take(message)
                self._await(answer, lambda: life.has_ended(number))
            case msg.DrainWorker(reply=answer):
                self._take(message)
                self._await(answer, lambda: False)
            case _:
                self._take(message)
        self._settle()

    def restarted(self, error: Exception) -> None:
        """End the incarnation; another one follows, as after any failure. The worker is given up if that fails twice.
        It may be started again then."""
        reason = f"its supervision failed: {type(error).__name__}: {error}"
        if not self.life.ending:
            self._take(msg.Loss(reason))
        elif self._ended_again != self.life.number:
            self._ended_again = self.life.number
            self._peer.end(0.0)  # its `Ended` may have been the message that failed
        else:
            self._take(msg.Abandon(reason))
        self._settle()

    def dropped(self, message: msg.WorkerMessage) -> None:
        match message:
            case msg.Admit(request) | (JoinRequest() as request):
                request.decline("the gateway is shutting down")

    async def stopped(self) -> None:
        """Stop the worker: ask, wait, kill."""
        self._idle = anyio.Event()
        try:
            self._take(msg.StopWorker())
            self._settle()
            await self._idle.wait()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._close()
            if self.life.running:
                self._take(msg.Abandon("its supervision has ended"))
            self._peer.end(0.0)

    def send_nowait(self, commands: Sequence[Command]) -> None:
        """See `WorkerRef`."""
        self.life.check_sendable(commands)
        try:
            self._send(commands)
        except (LinkFull, LinkClosed, MessageRefused) as error:
            raise WorkerUnavailable(f"worker {self.life.name!r}: {error}") from error
        self.life.sent(commands, self._loop.time())

    def kill_nowait(self) -> bool:
        """See `WorkerRef`."""
        if not self._peer.kill():
            return False
        self.life.exempt(self.life.number)
        return True

    # Input from the peer and the timer.

    def _report(self, message: msg.WorkerReport) -> None:
        """Called from callbacks of the event loop. What has arrived on the link is handled before anything else, in
        several turns of the loop if there is much; a flood that never ends delays it no further than `MAX_DELAYS`."""
        if isinstance(message, msg.Frames | msg.LinkLost):  # a link is drained before its loss is reported
            self._post(message)
            return
        self._reports.append(message)
        if len(self._reports) == 1:
            self._post_report()

    def _post_report(self) -> None:
        """Post the report that has waited longest, if what has arrived on the link is handled."""
        if self._link is not None and self._report_delays < MAX_DELAYS and self._link.drain_now():
            self._report_delays += 1
            self._loop.call_soon(self._post_report)
            return
        self._report_delays = 0
        message = self._reports.popleft()
        if self._reports:
            self._loop.call_soon(self._post_report)
        self._post(message)

    def _post(self, message: msg.WorkerReport) -> None:
        """If the mailbox has no room for frames, the link is closed and counts as lost: frames after a gap must not be
        handled."""
        try:
            self.context.ref.tell(message, urgent=not isinstance(message, msg.Frames | msg.Admit))
        except MailboxFull as error:
            match message:
                case msg.Frames(number):
                    self._close()
                    self._report(msg.LinkLost(number, str(error), Origin.WITHIN, final=True))
                case msg.Admit(request):
                    request.decline("the gateway has no room for another join request: come again")
                case msg.Due():
                    pass  # each of the messages that wait sets the timer again
                case _:
                    raise
        except ActorStopped:
            self.dropped(message)

    def _observe(self) -> msg.Observation:
        if self._link is None:
            return msg.Observation()
        status = self.life.status
        suspended, origin = self._peer.observe(self._loop.time() - status.last_frame, status.hang_s)
        return msg.Observation(suspended, origin, self._link.dropped > 0)

    # Decisions of its life.

    def _take(self, message: msg.Input) -> None:
        """Carry out all that follows, then raise the first failure: watchers are notified of a loss in any case."""
        inputs, failed = deque([message]), None
        while inputs:
            for decision in self.life.take(inputs.popleft(), self._loop.time()):
                try:
                    if (answer := self._carry_out(decision)) is not None:
                        inputs.append(answer)
                except Exception as error:  # noqa: BLE001  raised below
                    failed = failed or error
        if failed is not None:
            raise failed

    def _carry_out(self, decision: msg.Decision) -> msg.Input | None:
        match decision:
            case msg.StartIncarnation(number, request):
                try:
                    self._link, started = self._peer.start(number, request, self._report)
                except (EndpointError, SpawnFailed, OSError) as error:
                    return msg.Loss(str(error), shortage=is_shortage(error))
                return started
            case msg.SendCommand(command):
                try:
                    self._send([command])
                except (LinkFull, LinkClosed):
                    return msg.NotSent(command)
            case msg.CloseLink(linger_s):
                self._close(linger_s)
            case msg.EndIncarnation(ask_s):
                self._peer.end(ask_s)
            case msg.DeclineJoin(request, why):
                request.decline(why)
            case _:
                self.context.notify(decision, urgent=not isinstance(decision, WorkerEvent))
        return None

    def _send(self, commands: Sequence[Command]) -> None:
        if self._link is None:
            raise LinkClosed("the link is closed")
        self._link.send_nowait(encode_commands(commands))
        if reads := sum(isinstance(each, ReadRows) for each in commands):
            self._link.expect(MAX_ROWS_BYTES * reads)

    def _close(self, linger_s: float = 0.0) -> None:
        if self._link is not None:
            self._link.close(linger_s)
            self._link = None

    # Replies that wait.

    def _await(self, reply: ReplyTo[WorkerStatus] | None, reached: Callable[[], bool]) -> None:
        """Reply with the status once that is reached, or the worker has ended."""
        if reply is not None:
            self._deferred.add(reply, lambda: self.life.status if reached() or not self.life.running else None)

    def _settle(self) -> None:
        """After each message."""
        self._deferred.settle()
        if not self.life.running:
            self._idle.set()
        due = self.life.due
        if due < (math.inf if self._timer is None else self._timer.when()):  # firing early does no harm
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(due, self._due)

    def _due(self) -> None:
        """A deadline has come. What has arrived by then is handled first, in turns of the loop of its own; a flood
        that never ends delays it no further."""
        link = self._link
        if link is not None and self._delays < MAX_DELAYS and link.drain_turn():
            self._delays += 1
            self._timer = self._loop.call_later(0.0, self._due)
            return
        self._timer, self._delays = None, 0
        self._report(msg.Due())
