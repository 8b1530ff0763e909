"""A worker's process on this machine: its start, its socket, its end."""

import asyncio
import contextlib
import errno
import functools
import os
from collections.abc import Callable, Sequence

import structlog

from actors.join.request import JoinRequest
from actors.process.child import ChildProcess
from actors.process.descriptors import NoDescriptors
from actors.process.exit_cause import STOPPED, Origin, of_hang
from actors.process.logs import forward
from actors.process.threads import NoThreads
from actors.supervision.life import Terms
from actors.supervision.messages import Ended, Exited, Frames, LinkLost, Started
from actors.supervision.peer import Report
from actors.transport.endpoint import LocalEndpoint
from actors.transport.link import Link
from actors.transport.rate_limit import PeerRate

CommandLine = Callable[[str, int], Sequence[str]]
"""`command(endpoint, incarnation)` is the program and its arguments."""
PASSING = frozenset({errno.EAGAIN, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENOSPC})
REST_S = 0.01
"""From the exit of a process to its end for the worker's life. The start of the next one blocks the event loop for some
milliseconds: first, the sequences of the lost one continue on other workers."""
KEPT_FROM_WORKERS = frozenset({"BATON_API_KEY", "BATON_ADMIN_KEY", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"})
"""Variables that no child needs: keys, and what would let it notify the service manager in the gateway's place. A
worker runs native code on what a checkpoint and a client gave it."""


def is_shortage(error: BaseException | None) -> bool:
    """True if an error or its cause is a passing shortage: of disk space, processes or threads, memory, or
    descriptors."""
    while error is not None:
        if isinstance(error, NoDescriptors | NoThreads) or getattr(error, "errno", None) in PASSING:
            return True
        error = error.__cause__
    return False


class LocalPeer:
    """Implements `Peer` by a child process. Owns it and the folder of its socket."""

    def __init__(self, name: str, command: CommandLine, terms: Terms) -> None:
        self._name = name
        self._command = command
        self._terms = terms
        self._log = structlog.get_logger("worker").bind(worker=name)
        self._report: Report = lambda report: None
        self._number = 0
        self._endpoint: LocalEndpoint | None = None
        self._child: ChildProcess | None = None
        self._ending = False
        self._connected = False

    def start(self, number: int, request: JoinRequest | None, report: Report) -> tuple[Link, Started]:
        """Bind a link in a fresh folder of mode 0700, and spawn a process that connects to it."""
        self._report, self._number, self._ending, self._connected = report, number, False, False
        with contextlib.ExitStack() as undo:
            self._endpoint = undo.enter_context(LocalEndpoint())
            link = Link.bind(
                self._endpoint.address,
                lambda frames: report(Frames(number, frames, "" if self._connected else self._connect(link))),
                on_lost=lambda reason: report(LinkLost(number, reason, Origin.WITHIN, link.cut_off)),
                rate=PeerRate(),
                on_rejected=self._terms.rejections.count,
            )
            undo.callback(link.close, 0.0)
            argv = self._command(self._endpoint.address, number)
            on_line = functools.partial(forward, worker=self._name, incarnation=number)
            env = {name: value for name, value in os.environ.items() if name not in KEPT_FROM_WORKERS}
            self._child = ChildProcess.spawn(argv, on_line, functools.partial(self._exited, number), env)
            undo.pop_all()
        self._log.info("worker_started", incarnation=number, pid=self._child.pid)
        return link, Started(self._child.pid)

    def observe(self, silent_s: float, hang_s: float) -> tuple[bool, Origin]:
        """See `Peer`. A suspended process is not to blame for a hang."""
        state = None if self._child is None else self._child.state
        return state == STOPPED, of_hang(state)

    def end(self, ask_s: float) -> None:
        self._ending = True
        if self._child is None or self._child.returncode is not None:
            asyncio.get_running_loop().call_later(REST_S, self._gone, self._number)
        else:
            self._child.end(ask_s, self._terms.deadlines.term)

    def kill(self) -> bool:
        """See `Peer`."""
        return self._child is not None and self._child.kill()

    def _connect(self, link: Link) -> str:
        """Check the sender of the first message, and remove the socket: a gateway that is killed then leaves no file.
        Returns what is wrong, or nothing."""
        pid = link.peer_pid
        if pid is not None and self._child is not None and not self._child.owns(pid):
            return f"process {pid} said Hello, which was not started here"
        self._connected = True
        assert self._endpoint is not None, "of this link"
        self._endpoint.remove()
        return ""

    def _exited(self, number: int) -> None:
        child = self._child
        if number != self._number or child is None:
            return  # it had been given up
        if self._ending:
            self._gone(number)
        else:
            self._report(Exited(number, child.describe_exit(), child.origin, child.returncode == 0))

    def _gone(self, number: int) -> None:
        if number != self._number:
            return  # it was asked to end twice, and the next one has started
        child, self._child = self._child, None
        if self._endpoint is not None:
            self._endpoint.remove()
        if child is not None:
            self._log.info("worker_exited", incarnation=number, pid=child.pid, status=child.returncode)
        self._report(Ended(number))
