"""The whole gateway in one process: the workers' supervisors, the router and the server, from start to clean end."""

import signal
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

import anyio
import structlog

from actors.supervision import Policy
from actors.worker import Deadlines, WorkerState, WorkerStatus
from gateway.app import create_app
from gateway.fleet import Fleet, Member
from gateway.launch import WorkerLaunch
from gateway.operations import Operations
from gateway.resumable import ResumableStreams
from gateway.router import Router
from gateway.server import listen, serve
from gateway.settings import GatewaySettings

_log = structlog.get_logger("gateway.daemon")

WORKERS_END_S = 15.0
"""Time in which the workers must have ended after they were asked to; their supervisors kill before this."""


SETTLED = frozenset({WorkerState.READY, WorkerState.GIVEN_UP, WorkerState.STOPPED})


def _has_settled(member: Member) -> bool:
    """It was started, and is as ready as it will be."""
    return bool(member.process.status.incarnation) and member.state in SETTLED


class Predecessor(Protocol):
    """The gateway whose port is taken over. Both methods log what goes wrong, and do not raise."""

    async def meet(self) -> None:
        """Find it, while whoever connects to the port is connected to it alone."""

    async def relieve(self) -> None:
        """Ask it to take no more connections and to leave when the ones it has are done."""


class WorkersGaveUp(Exception):
    """Raised when no worker can be kept alive: there is nothing left to serve. The message has the reasons."""


async def run_daemon(
    settings: GatewaySettings,
    workers: Sequence[WorkerLaunch],
    *,
    on_status: Callable[[WorkerStatus], None] | None = None,
    on_listening: Callable[[str, int], None] | None = None,
    policy: Policy | None = None,
    deadlines: Deadlines | None = None,
    predecessor: Predecessor | None = None,
) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP, then end cleanly; a second signal skips the grace.

    With a `predecessor` connections are taken only when the workers are ready; then it is asked to leave.

    `on_listening` is told the address once it is ours, `on_status` of every change of a worker. Raises `BindError`
    before anything starts, and `WorkersGaveUp` after everything has ended.
    """
    listener = listen(settings, take_over=predecessor is not None)
    router = Router(settings)
    limits = deadlines or Deadlines(hang=settings.hang_timeout_s)
    fleet = Fleet(router, on_status=on_status, policy=policy, deadlines=limits)
    for launch in workers:
        fleet.add(launch)
    daemon = _Daemon(settings, router, fleet)
    host, port = listener.getsockname()[:2]
    if on_listening is not None:
        on_listening(host, port)
    _log.info("listening", host=host, port=port)
    async with anyio.create_task_group() as group:
        group.start_soon(daemon.watch_signals)
        group.start_soon(fleet.run)
        group.start_soon(daemon.watch_fleet)
        group.start_soon(daemon.run_server, listener, predecessor)
        await daemon.leave.wait()
        reasons = fleet.reasons() if fleet.gave_up.is_set() else []
        await daemon.end()
        group.cancel_scope.cancel()
    if reasons:
        raise WorkersGaveUp("; ".join(reasons))


class _Daemon:
    """Owns the order of the end: no admissions, streams, server, workers."""

    def __init__(self, settings: GatewaySettings, router: Router, fleet: Fleet) -> None:
        self.leave = anyio.Event()
        self._settings = settings
        self._router = router
        self._fleet = fleet
        self._streams = ResumableStreams(settings, router.metrics)
        self._operations = Operations(fleet, router.roster, self._hand_over)
        self._handing_over = False
        self._operating = anyio.CancelScope()
        self._hurry = anyio.Event()
        self._shutdown = anyio.Event()
        self._server_ended = anyio.Event()

    async def watch_signals(self) -> None:
        wanted = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as it is under nohup
            wanted.append(signal.SIGHUP)
        with anyio.open_signal_receiver(*wanted) as signals:
            async for number in signals:
                _log.info("signal", name=signal.Signals(number).name)
                if self.leave.is_set():
                    self._hurry.set()
                self.leave.set()

    async def watch_fleet(self) -> None:
        """Carry out what operators ask for; leave when no worker can be kept alive."""
        with self._operating:
            async with anyio.create_task_group() as group:
                group.start_soon(self._operations.run)
                await self._fleet.gave_up.wait()
                _log.error("workers_gave_up", reasons=self._fleet.reasons())
                self.leave.set()

    async def run_server(self, listener: socket.socket, predecessor: Predecessor | None) -> None:
        try:
            if predecessor is not None:
                await self._fleet.until(lambda: all(_has_settled(each) for each in self._fleet))
                if not self._serves_all():
                    _log.error("not_taken_over", reasons=self._fleet.reasons())
                    listener.close()  # the other gateway keeps the port
                    return
                await predecessor.meet()
            async with anyio.create_task_group() as group:
                group.start_soon(self._serve, listener)
                if predecessor is not None:
                    await predecessor.relieve()
        finally:
            self._server_ended.set()
            self.leave.set()

    def _serves_all(self) -> bool:
        models = {each.launch.model for each in self._fleet}
        return models == {each.launch.model for each in self._fleet if each.state is WorkerState.READY}

    async def _serve(self, listener: socket.socket) -> None:
        app = create_app(self._router, self._settings, self._operations, self._streams)
        await serve(app, self._settings, shutdown=self._shutdown, listener=listener, grace_s=self._grace_s)

    def _grace_s(self) -> float:
        """What connections get when the server ends: all their time when that is the beginning of the end."""
        return self._settings.flush_s + (self._settings.shutdown_grace_s if self._handing_over else 0.0)

    def _hand_over(self) -> None:
        """Another gateway has the port, too: take no more connections. Those that are here may finish."""
        _log.info("hands_over")
        self._handing_over = True
        self.leave.set()

    async def end(self) -> None:
        """Each step is bounded."""
        router, settings = self._router, self._settings
        self._operating.cancel()
        if self._handing_over:
            self._shutdown.set()  # a request that has been accepted is served
        else:
            router.drain_nowait()
        async with anyio.create_task_group() as group:
            group.start_soon(self._cut_grace, group.cancel_scope)
            with anyio.move_on_after(settings.shutdown_grace_s):
                if self._handing_over:
                    await self._server_ended.wait()
                else:
                    await router.idle()
                    await self._streams.settled()
            group.cancel_scope.cancel()
        router.drain_nowait()
        router.fail_all("the gateway is shutting down")
        self._shutdown.set()
        with anyio.move_on_after(settings.flush_s + 1):
            await self._server_ended.wait()
        self._streams.close()
        await self._fleet.stop(WORKERS_END_S)
        _log.info("ended")

    async def _cut_grace(self, scope: anyio.CancelScope) -> None:
        await self._hurry.wait()
        scope.cancel()
