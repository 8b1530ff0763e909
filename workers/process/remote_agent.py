"""A worker of this machine in the service of a gateway on another: an actor that supervises it and keeps it joined.

The worker is a process like any other, watched and started again; what it and the gateway send each other is passed on.
So a lost link costs no reload: the worker keeps its model, what it computes for the lost gateway is cancelled, and it
joins again as a new incarnation. And a death costs no waiting: the gateway learns of it at once.
"""

import asyncio
import signal
from collections import deque
from collections.abc import Sequence

import anyio
import structlog
from msgspec import Struct

from actors.actor import Actor, OnFailure, Terminated
from actors.join.join_keys import JoinKeys
from actors.mailbox import MailboxFull
from actors.process.service_manager import ServiceManager
from actors.supervision.deadlines import Deadlines
from actors.supervision.life import Terms
from actors.supervision.local import CommandLine
from actors.supervision.messages import RestartWorker, StartWorker, StopWorker
from actors.supervision.restart_policy import MAX_REMEMBERED, RestartPolicy
from actors.supervision.worker import (
    GraceEnded,
    IncarnationLost,
    WorkerChanged,
    WorkerEvent,
    WorkerNotice,
    WorkerState,
    WorkerStatus,
    WorkerUnavailable,
)
from actors.supervision.worker_actor import WorkerRef, spawn_worker
from actors.system import ActorSystem
from actors.transport.endpoint import EndpointError, check_address
from actors.transport.link import KEY_REFUSED
from protocol.bounds import MAX_FRAMES_PER_MESSAGE
from protocol.commands import Cancel
from protocol.errors import ByeReason
from protocol.events import HEARTBEAT_S, Bye, Failed, Finished
from workers.process.gateway_link import GatewayLink

WELCOME_S = 15.0
RETRY = RestartPolicy(max_failures=None, window_s=60.0, first_delay_s=0.25, max_delay_s=10.0)
"""Pauses between attempts to reach the gateway."""
_JOINED = frozenset({WorkerState.LOADING, WorkerState.READY})


class WorkerGaveUp(Exception):
    """Raised when the worker's process cannot be kept alive; the message says why."""


class StopAgent(Struct, frozen=True):
    """Leave for good. What is live continues with other workers: the gateway is notified first."""


class GatewayFrames(Struct, frozen=True):
    """A message of the gateway."""

    link: GatewayLink
    frames: list[bytes]


class GatewayLost(Struct, frozen=True):
    """The link to the gateway has ended."""

    link: GatewayLink
    reason: str


class LinkDue(Struct, frozen=True):
    """The time of a heartbeat, or the deadline of the `Welcome`, has come."""

    link: GatewayLink


class JoinDue(Struct, frozen=True):
    """The time to connect again has come."""


AgentMessage = StopAgent | GatewayFrames | GatewayLost | LinkDue | JoinDue | WorkerNotice | Terminated


class RemoteAgent(Actor[AgentMessage]):
    """Supervises one worker and its link to the gateway, one link at a time. Ends when the worker has ended."""

    def __init__(
        self,
        name: str,
        command: CommandLine,
        address: str,
        keys: JoinKeys,
        *,
        join_timeout_s: float = 0.0,
        policy: RestartPolicy | None = None,
        deadlines: Deadlines | None = None,
        signals: Sequence[signal.Signals] = (),
        manager: ServiceManager | None = None,
    ) -> None:
        """It gives up after `join_timeout_s` without a gateway; 0: never. One of the `signals` stops it. `manager`
        learns when it has joined with its model loaded, and of the end.

        Raises `actors.transport.endpoint.EndpointError` for an invalid address.
        """
        check_address(address, secured=True)
        self.gave_up = ""
        """The reason why the worker was given up, if it was."""
        self._name = name
        self._command = command
        self._address = address
        self._keys = keys
        self._join_timeout_s = join_timeout_s
        self._terms = Terms(policy, deadlines or Deadlines())
        self._signals = signals
        self._manager = ServiceManager({}) if manager is None else manager
        self._log = structlog.get_logger("joining").bind(worker=name, gateway=address, key=keys.own_text)
        self._link: GatewayLink | None = None
        self._left: frozenset[int] = frozenset()  # what the gateway of an ended link still had on the worker
        self._failures: deque[float] = deque(maxlen=MAX_REMEMBERED)
        self._waits = False  # before it tries again
        self._made_at = 0.0
        self._alone_since: float | None = None  # without a gateway, from the first try to reach one

    def started(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._worker = self.supervise()
        self._worker.ref.watch(self.context.ref)
        self._worker.ref.tell(StartWorker())
        self.context.start_soon(self._manager.keep_alive)
        if self._signals:
            self.context.start_soon(self._stop_at_signals)

    def supervise(self) -> WorkerRef:
        """Start the worker's actor."""
        return spawn_worker(self.context, self._name, self._terms, self._command)

    async def _stop_at_signals(self) -> None:
        with anyio.open_signal_receiver(*self._signals) as signals:
            async for _ in signals:
                self.context.ref.tell(StopAgent(), urgent=True)

    def handle(self, message: AgentMessage) -> None:
        """See `AgentMessage`."""
        link = self._link
        match message:
            case WorkerEvent(event=event):
                if not self._left and link is not None:
                    link.pass_on(event)
                elif isinstance(event, Finished | Failed):
                    self._left -= {event.stream}
            case WorkerChanged(status):
                self._changed(status)
            case IncarnationLost():
                self._left = frozenset()
                if link is not None:
                    link.worker_lost(message)
            case GatewayFrames(source, frames) if source is link:
                before = source.joined
                source.receive(frames)
                if source.joined and not before:
                    self._keys.welcomed()
            case GatewayLost(source, reason) if source is link:
                source.end(reason)
            case LinkDue(source) if source is link:
                self._attend(source)
            case JoinDue():
                self._waits = False
            case StopAgent():
                self._manager.stopping()
                self._leave("the worker is to stop")
                self._worker.ref.tell(StopWorker(), urgent=True)
            case Terminated():
                self.context.ref.stop()
            case GraceEnded() | GatewayFrames() | GatewayLost() | LinkDue():
                pass  # the gateway moves its streams by itself; the others are of a link that is no more
        if self._link is not None and self._link.ended is not None:
            self._over(self._link)
        self._join()
        if self._link is not None and self._link.joined and self._worker.status.state is WorkerState.READY:
            self._manager.ready()

    async def stopped(self) -> None:
        """Close the link, if there is one."""
        if self._link is not None:
            self._link.end("the worker was stopped")

    # The worker.

    def _changed(self, status: WorkerStatus) -> None:
        if self._link is not None:
            self._link.changed(status)
        if not status.running:
            if status.state is WorkerState.GIVEN_UP:
                self.gave_up = self.gave_up or status.reason
            self.context.ref.stop()

    def _leave(self, reason: str) -> None:
        if self._link is not None:
            self._link.send(Bye(ByeReason.STOPPED, "its machine stops it"))
            self._link.end(reason)

    # Its link to the gateway.

    def _join(self) -> None:
        """Connect, if there is a worker that has nothing of an earlier gateway's any more."""
        status = self._worker.status
        if self._link is not None or self._waits or self._left or status.hello is None or status.state not in _JOINED:
            return
        if self._alone_since is None:
            self._alone_since = self._loop.time()
        try:
            link = GatewayLink(
                self._worker,
                self._address,
                self._keys.current,
                lambda frames: self._post(GatewayFrames(link, frames)),
                lambda reason: self._post(GatewayLost(link, reason)),
            )
        except EndpointError as error:
            self._try_later(str(error))
            return
        self._link, self._made_at = link, self._loop.time()
        self.context.start_soon(link.send_hello, status.hello, self._keys.registers)
        self._later(HEARTBEAT_S, LinkDue(link))

    def _attend(self, link: GatewayLink) -> None:
        if not link.joined and self._loop.time() - self._made_at >= WELCOME_S:
            link.end(f"no answer within {WELCOME_S:g} s")
        else:
            link.send_heartbeat()
            self._later(HEARTBEAT_S, LinkDue(link))

    def _over(self, link: GatewayLink) -> None:
        """Cancel the sequences of a link that has ended, which the gateway replays, and connect again later."""
        self._link, self._left = None, link.live
        cancels = [Cancel(stream) for stream in self._left]
        try:
            for start in range(0, len(cancels), MAX_FRAMES_PER_MESSAGE):
                self._worker.send_nowait(cancels[start : start + MAX_FRAMES_PER_MESSAGE])
        except WorkerUnavailable as error:
            self._log.warning("worker_restarts", reason=f"a cancel cannot be sent to it: {error}")
            self._worker.ref.tell(RestartWorker(0.0), urgent=True)
        if link.joined:
            self._failures.clear()
            self._alone_since = None
        if why := self._keys.ended(refused=link.ended == KEY_REFUSED):
            self._give_up(why)
        else:
            self._try_later(link.ended)

    def _out_of_time(self, reason: str | None) -> str:
        since = self._alone_since
        if not self._join_timeout_s or since is None or self._loop.time() - since < self._join_timeout_s:
            return ""
        return f"it was without a gateway for {self._join_timeout_s:g} s: {reason}"

    def _give_up(self, why: str) -> None:
        self.gave_up = why
        self._log.error("gives_up", reason=why)
        self._manager.stopping()
        self._waits = True
        self._worker.ref.tell(StopWorker(), urgent=True)

    def _try_later(self, reason: str | None) -> None:
        if why := self._out_of_time(reason):
            self._give_up(why)
            return
        now = self._loop.time()
        self._failures.append(now)
        delay_s = RETRY.delay_s(self._failures, now)
        self._log.warning("not_joined", reason=reason, retry_s=delay_s)
        self._waits = True
        self._later(delay_s, JoinDue())

    def _later(self, delay_s: float, message: AgentMessage) -> None:
        self._loop.call_later(delay_s, self._post, message)

    def _post(self, message: AgentMessage) -> None:
        """Called from callbacks of the event loop. Frames for which the mailbox has no room end the link."""
        if self.context.ref.end is not None:
            return
        try:
            self.context.ref.tell(message, urgent=not isinstance(message, GatewayFrames))
        except MailboxFull as error:
            if not isinstance(message, GatewayFrames):
                raise
            self._post(GatewayLost(message.link, str(error)))


async def run_agent(agent: RemoteAgent) -> None:
    """Keep a worker joined until it was stopped. A cancel stops it. Raises `WorkerGaveUp`."""
    async with ActorSystem() as system:
        end = await system.spawn("agent", agent, on_failure=OnFailure.STOP).wait_stopped()
    if end.error is not None:
        raise end.error
    if agent.gave_up:
        raise WorkerGaveUp(agent.gave_up)
