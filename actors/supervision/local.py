"""A worker that is a process of this machine: its spawn, its socket, its end."""

import asyncio
import contextlib
import functools
import os
from collections.abc import Callable, Sequence

import structlog

from actors.actor import Context
from actors.join.request import JoinRequest
from actors.process.child import ChildProcess
from actors.process.exit_cause import Origin
from actors.process.logs import forward
from actors.supervision.conversation import PeerMisbehaved
from actors.supervision.deadlines import Deadlines
from actors.supervision.life import Life
from actors.supervision.messages import Ended, Exited, Frames, LinkLost, Started
from actors.supervision.peer import Report
from actors.supervision.restart_policy import RestartPolicy
from actors.supervision.worker_actor import WorkerRef, spawn_worker
from actors.transport.endpoint import LocalEndpoint
from actors.transport.link import Link
from actors.transport.rate_limit import PeerRate
from actors.transport.rejections import Rejections

CommandLine = Callable[[str, int], Sequence[str]]
"""`command(endpoint, incarnation)` gives the program and its arguments, for the next incarnation."""
KEPT_FROM_WORKERS = frozenset({"BATON_API_KEY", "BATON_ADMIN_KEY"})
"""Variables that no worker needs: it runs native code on what a checkpoint and a client gave it."""


def spawn_local(
    context: Context,
    name: str,
    command: CommandLine,
    *,
    policy: RestartPolicy | None = None,
    deadlines: Deadlines | None = None,
    rejections: Rejections | None = None,
) -> WorkerRef:
    """Supervise a worker of this machine, as a child of that actor. It starts with `StartWorker`."""
    life = Life(name, policy=policy, deadlines=deadlines, rejections=rejections)
    return spawn_worker(context, life, LocalPeer(name, command, life.deadlines, life.rejections))


class LocalPeer:
    """Implements `Peer` by a child process. Owns it and the folder of its socket."""

    def __init__(self, name: str, command: CommandLine, deadlines: Deadlines, rejections: Rejections) -> None:
        self._name = name
        self._command = command
        self._deadlines = deadlines
        self._rejections = rejections
        self._log = structlog.get_logger("worker").bind(worker=name)
        self._report: Report = lambda report: None
        self._number = 0
        self._endpoint: LocalEndpoint | None = None
        self._child: ChildProcess | None = None
        self._ending = False

    def start(self, number: int, request: JoinRequest | None, report: Report) -> tuple[Link, Started]:
        """Bind a link in a fresh folder of mode 0700, and spawn a process that connects to it."""
        self._report, self._number, self._ending = report, number, False
        with contextlib.ExitStack() as undo:
            endpoint = undo.enter_context(LocalEndpoint())
            link = Link.bind(
                endpoint.address,
                lambda frames: report(Frames(number, frames)),
                on_lost=lambda reason: report(LinkLost(number, reason, Origin.WITHIN, link.cut_off)),
                rate=PeerRate(),
                on_rejected=self._rejections.count,
            )
            undo.callback(link.close, 0.0)
            argv = self._command(endpoint.address, number)
            env = {name: value for name, value in os.environ.items() if name not in KEPT_FROM_WORKERS}
            forwarded = functools.partial(forward, worker=self._name, incarnation=number)
            child = ChildProcess.spawn(argv, forwarded, functools.partial(self._exited, number), env)
            undo.pop_all()
        self._endpoint, self._child = endpoint, child
        self._log.info("worker_started", incarnation=number, pid=child.pid)
        return link, Started(child.pid)

    def check(self, link: Link) -> None:
        """Raises `PeerMisbehaved` when not the child but another process has connected to its socket."""
        pid = link.peer_pid
        if pid is not None and self._child is not None and not self._child.owns(pid):
            raise PeerMisbehaved(f"process {pid} said Hello, which was not started here")

    def welcomed(self) -> None:
        """Remove the folder of the socket: a gateway that is killed leaves no file then."""
        if self._endpoint is not None:
            self._endpoint.remove()

    def look(self, silent_s: float, hang_s: float) -> tuple[bool, Origin]:
        """By the state of its process: one that was suspended hangs for no reason of its own."""
        child = self._child
        return (False, Origin.UNKNOWN) if child is None else (child.suspended, child.hang_origin)

    def end(self, number: int, ask_s: float) -> None:
        """Wait, SIGTERM, wait, SIGKILL."""
        self._ending = True
        if self._child is None or self._child.returncode is not None:
            asyncio.get_running_loop().call_soon(self._gone, number)
        else:
            self._child.end(ask_s, self._deadlines.term)

    def _exited(self, number: int) -> None:
        child = self._child
        if number != self._number or child is None:
            return  # it had been given up
        if self._ending:
            self._gone(number)
        else:
            self._report(Exited(number, child.describe_exit(), child.origin, child.returncode == 0))

    def _gone(self, number: int) -> None:
        child, self._child = self._child, None
        self.welcomed()
        if child is not None:
            self._log.info("worker_exited", incarnation=number, pid=child.pid, status=child.returncode)
        self._report(Ended(number))
