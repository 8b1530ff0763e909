"""The whole gateway in one process: the workers' supervisors, the router and the server, from start to clean end."""

import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio
import structlog
from anyio.abc import TaskGroup

from actors.supervision import Policy
from actors.worker import Deadlines, WorkerState, WorkerStatus
from actors.worker_process import WorkerProcess
from gateway.app import create_app
from gateway.router import Router
from gateway.server import listen, serve
from gateway.settings import GatewaySettings
from gateway.workers import Role
from protocol.events import Event

_log = structlog.get_logger("gateway.daemon")

WORKERS_END_S = 15.0
"""Time in which the workers must have ended after they were asked to; their supervisors kill before this."""


class WorkersGaveUp(Exception):
    """Raised when the last worker cannot be kept alive: there is nothing left to serve. The message has the reason."""


@dataclass(frozen=True, slots=True)
class WorkerLaunch:
    """A worker to keep alive: `command(endpoint, incarnation)` is its argument vector."""

    name: str
    model: str
    command: Callable[[str, int], Sequence[str]]
    standby: bool = False
    """Loaded and kept ready, to take the place of one that is lost."""


async def run_daemon(
    settings: GatewaySettings,
    workers: Sequence[WorkerLaunch],
    *,
    on_status: Callable[[WorkerStatus], None] | None = None,
    on_listening: Callable[[str, int], None] | None = None,
    policy: Policy | None = None,
    deadlines: Deadlines | None = None,
) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP, then end cleanly; a second signal skips the grace.

    `on_listening` is told the address once connections are taken, `on_status` of every change of a worker. Raises
    `BindError` before anything starts, and `WorkersGaveUp` after everything has ended.
    """
    listener = listen(settings)
    host, port = listener.getsockname()[:2]
    daemon = _Daemon(settings, on_status)
    daemon.add_workers(workers, policy, deadlines)
    if on_listening is not None:
        on_listening(host, port)
    _log.info("listening", host=host, port=port)
    async with anyio.create_task_group() as group:
        group.start_soon(daemon.watch_signals)
        daemon.start_workers(group)
        group.start_soon(daemon.run_server, listener)
        await daemon.leave.wait()
        await daemon.end()
        group.cancel_scope.cancel()
    if daemon.gave_up:
        raise WorkersGaveUp("; ".join(daemon.gave_up))


class _Daemon:
    """Owns the order of the end: no admissions, streams, server, workers."""

    def __init__(
        self,
        settings: GatewaySettings,
        on_status: Callable[[WorkerStatus], None] | None,
    ) -> None:
        self.leave = anyio.Event()
        self.gave_up: list[str] = []
        self._settings = settings
        self._on_status = on_status
        self._hurry = anyio.Event()
        self._shutdown = anyio.Event()
        self._server_ended = anyio.Event()
        self._workers_ended = anyio.Event()
        self._router = Router(settings)
        self._processes: list[WorkerProcess] = []
        self._running = 0

    def add_workers(self, workers: Sequence[WorkerLaunch], policy: Policy | None, deadlines: Deadlines | None) -> None:
        for launch in workers:
            limits = deadlines or Deadlines(hang=self._settings.hang_timeout_s)
            process = WorkerProcess(launch.name, launch.command, self, policy=policy, deadlines=limits)
            self._router.add(process, launch.name, launch.model, Role.STANDBY if launch.standby else Role.ACTIVE)
            self._processes.append(process)
        self._running = len(self._processes)

    # What the workers say goes to the router, and their changes also to whoever started the daemon.

    def worker_event(self, worker: str, incarnation: int, event: Event) -> None:
        self._router.worker_event(worker, incarnation, event)

    def worker_changed(self, status: WorkerStatus) -> None:
        self._router.worker_changed(status)
        if self._on_status is not None:
            self._on_status(status)

    def worker_lost(self, worker: str, incarnation: int, reason: str) -> None:
        self._router.worker_lost(worker, incarnation, reason)

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

    def start_workers(self, group: TaskGroup) -> None:
        for process in self._processes:
            group.start_soon(self._run_worker, process)

    async def _run_worker(self, process: WorkerProcess) -> None:
        await process.run()
        status = process.status
        if status.state is WorkerState.GIVEN_UP:
            self.gave_up.append(f"worker {status.name}: {status.reason}")
            _log.error("worker_gave_up", worker=status.name, reason=status.reason)
        self._running -= 1
        if self._running == 0:
            self._workers_ended.set()
            self.leave.set()

    async def run_server(self, listener: socket.socket) -> None:
        try:
            app = create_app(self._router, self._settings)
            await serve(app, self._settings, shutdown=self._shutdown, listener=listener)
        finally:
            self._server_ended.set()
            self.leave.set()

    async def end(self) -> None:
        """Each step is bounded."""
        router, settings = self._router, self._settings
        router.drain_nowait()
        async with anyio.create_task_group() as group:
            group.start_soon(self._cut_grace, group.cancel_scope)
            with anyio.move_on_after(settings.shutdown_grace_s):
                await router.idle()
            group.cancel_scope.cancel()
        router.fail_all("the gateway is shutting down")
        self._shutdown.set()
        with anyio.move_on_after(settings.flush_s + 1):
            await self._server_ended.wait()
        for process in self._processes:
            process.stop_nowait()
        with anyio.move_on_after(WORKERS_END_S):
            await self._workers_ended.wait()
        _log.info("ended")

    async def _cut_grace(self, scope: anyio.CancelScope) -> None:
        await self._hurry.wait()
        scope.cancel()
