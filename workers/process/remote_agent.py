"""A worker of this machine in the service of gateways on others: an actor that supervises it and keeps it joined.

The worker is a process like any other, watched and started again; what it and the gateways send each other is passed
on. So a lost link costs no reload: the worker keeps its model, what it computes for the lost gateway is cancelled, and
it joins again as a new incarnation. And a death costs no waiting: the gateways learn of it at once.
"""

import asyncio
import signal
from collections.abc import Sequence

import anyio
from msgspec import Struct

from actors.actor import Actor, OnFailure, Terminated
from actors.mailbox import MailboxFull
from actors.process.service_manager import ServiceManager
from actors.supervision.deadlines import Deadlines
from actors.supervision.life import Terms
from actors.supervision.local import CommandLine
from actors.supervision.messages import StartWorker, StopWorker
from actors.supervision.restart_policy import RestartPolicy
from actors.supervision.worker import (
    GraceEnded,
    IncarnationLost,
    WorkerChanged,
    WorkerEvent,
    WorkerNotice,
    WorkerState,
    WorkerStatus,
)
from actors.supervision.worker_actor import WorkerRef, spawn_worker
from actors.system import ActorSystem
from actors.transport.endpoint import check_address
from protocol.errors import ByeReason
from protocol.events import Bye
from workers.process.gateways.address import GatewayAddress, tenant_prefixes
from workers.process.gateways.connection import (
    GatewayConnection,
    GatewayFrames,
    GatewayLost,
    GatewayMessage,
    JoinDue,
    LinkDue,
    may_join,
)
from workers.process.gateways.shared_worker import SharedWorker


class WorkerGaveUp(Exception):
    """Raised when the worker's process cannot be kept alive; the message says why."""


class StopAgent(Struct, frozen=True):
    """Leave for good. What is live continues with other workers: the gateway is notified first."""


class AloneTooLong(Struct, frozen=True):
    """The time without a gateway is over, unless the worker has joined one meanwhile."""

    since: float


AgentMessage = StopAgent | AloneTooLong | GatewayMessage | WorkerNotice | Terminated


class RemoteAgent(Actor[AgentMessage]):
    """Supervises one worker and its links to the gateways, one link to each at a time. Ends when the worker has
    ended."""

    def __init__(
        self,
        name: str,
        command: CommandLine,
        gateways: Sequence[GatewayAddress],
        *,
        join_timeout_s: float = 0.0,
        policy: RestartPolicy | None = None,
        deadlines: Deadlines | None = None,
        signals: Sequence[signal.Signals] = (),
        manager: ServiceManager | None = None,
    ) -> None:
        """It gives up after `join_timeout_s` without a gateway; 0: never. One of the `signals` stops it. `manager`
        learns when it has joined a gateway with its model loaded, and of the end.

        Raises `actors.transport.endpoint.EndpointError` for an invalid address.
        """
        for each in gateways:
            check_address(each.address, secured=True)
        self.gave_up = ""
        """The reason why the worker was given up, if it was."""
        self._name = name
        self._command = command
        self._gateways = gateways
        self._join_timeout_s = join_timeout_s
        self._terms = Terms(policy, deadlines or Deadlines())
        self._signals = signals
        self._manager = ServiceManager({}) if manager is None else manager
        self.connections: list[GatewayConnection] = []
        """Those to the gateways, in their order."""
        self._alone_since: float | None = None  # without a gateway, from when the worker could join

    def started(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._worker = self.supervise()
        self._shared = SharedWorker(
            self._worker,
            tenant_prefixes(self._gateways),
            self._loop.time,
            lambda gateway, event: self.connections[gateway].deliver(event),
        )
        calls = (self.context.start_soon, self._give_up, self._out_of_time)
        self.connections = [
            GatewayConnection(number, address, self._shared, self._post, *calls)
            for number, address in enumerate(self._gateways)
        ]
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
        match message:
            case WorkerEvent(event=event):
                self._shared.pass_on(event)
            case WorkerChanged(status):
                self._changed(status)
            case IncarnationLost():
                for connection, why in zip(self.connections, self._shared.lost(message), strict=True):
                    if connection.link is not None:
                        connection.link.worker_lost(why, message.reason)
            case GatewayFrames(gateway) | GatewayLost(gateway) | LinkDue(gateway) | JoinDue(gateway):
                if isinstance(message, LinkDue):
                    self._shared.end_waits()
                self.connections[gateway].handle(message)
            case AloneTooLong(since):
                if since == self._alone_since:
                    for connection in self.connections:
                        connection.give_up(self._alone_too_long("none has answered"))
            case StopAgent():
                self._manager.stopping()
                self._leave("the worker is to stop")
                self._worker.ref.tell(StopWorker(), urgent=True)
            case Terminated():
                self.context.ref.stop()
            case GraceEnded():
                pass  # the gateway moves its streams by itself
        for connection in self.connections:
            connection.settle()
        self._note_gateways()
        if self._worker.status.state is WorkerState.READY and any(each.joined for each in self.connections):
            self._manager.ready()

    async def stopped(self) -> None:
        """Close the links."""
        for connection in self.connections:
            if connection.link is not None:
                connection.link.end("the worker was stopped")

    def _changed(self, status: WorkerStatus) -> None:
        if status.hello is not None:
            self._shared.describe(status.hello.slots)
        for connection in self.connections:
            if connection.link is not None:
                connection.link.changed(status)
        if not status.running:
            if status.state is WorkerState.GIVEN_UP:
                self.gave_up = self.gave_up or status.reason
            self.context.ref.stop()

    def _note_gateways(self) -> None:
        if any(each.joined for each in self.connections):
            self._alone_since = None
        elif self._alone_since is None and may_join(self._worker.status):
            self._alone_since = self._loop.time()
            if self._join_timeout_s:  # a gateway that does not answer ends no link within this time
                message = AloneTooLong(self._alone_since)
                self._loop.call_at(self._alone_since + self._join_timeout_s, self._post, message)

    def _out_of_time(self, reason: str | None) -> str:
        since = self._alone_since
        if not self._join_timeout_s or since is None or self._loop.time() - since < self._join_timeout_s:
            return ""
        return self._alone_too_long(reason)

    def _alone_too_long(self, reason: str | None) -> str:
        return f"it was without a gateway for {self._join_timeout_s:g} s: {reason}"

    def _give_up(self, why: str) -> None:
        self.gave_up = self.gave_up or why
        self._manager.stopping()
        self._worker.ref.tell(StopWorker(), urgent=True)

    def _leave(self, reason: str) -> None:
        for connection in self.connections:
            if connection.link is not None:
                connection.link.send(Bye(ByeReason.STOPPED, "its machine stops it"))
                connection.link.end(reason)

    def _post(self, message: AgentMessage) -> None:
        """Called from callbacks of the event loop. Frames for which the mailbox has no room end the link."""
        if self.context.ref.end is not None:
            return
        try:
            self.context.ref.tell(message, urgent=not isinstance(message, GatewayFrames))
        except MailboxFull as error:
            if not isinstance(message, GatewayFrames):
                raise
            self._post(GatewayLost(message.gateway, message.link, str(error)))


async def run_agent(agent: RemoteAgent) -> None:
    """Keep a worker joined until it was stopped. A cancel stops it. Raises `WorkerGaveUp`."""
    async with ActorSystem() as system:
        end = await system.spawn("agent", agent, on_failure=OnFailure.STOP).wait_stopped()
    if end.error is not None:
        raise end.error
    if agent.gave_up:
        raise WorkerGaveUp(agent.gave_up)
