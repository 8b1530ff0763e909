"""A server in a child process, which ends with this one."""

import functools
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import Any

import anyio

from actors.process.logs import configure_logging
from actors.supervision.deadlines import Deadlines
from actors.supervision.restart_policy import RestartPolicy
from cli.config.errors import CommandFailed
from cli.config.launch import gateway_settings
from cli.config.model import ChosenModel
from cli.config.prefix_directory import PrefixTierPlan
from cli.config.settings import Settings
from cli.config.sources import load
from gateway.daemon import WorkersGaveUp, run_daemon
from gateway.fleet.launch import WorkerLaunch
from gateway.garbage_collection import collect_rarely
from gateway.http.listener import BindError

HOST = "127.0.0.1"
POLICY = RestartPolicy(max_failures=None, window_s=1.0, first_delay_s=0.05, max_delay_s=0.25)
"""Policy of a server that is started to be broken: treats each failure as a first one. The default policy would wait
longer and longer, and then give the worker up."""

Launcher = Callable[[Settings, ChosenModel], Sequence[WorkerLaunch]]
"""Returns the workers to start. It is pickled: a module's function, or a method or partial with picklable arguments."""


@dataclass(frozen=True)
class OwnedServer:
    """A server that listens on a port of `HOST`, or on a Unix socket alone. Its workers may still be loading."""

    pid: int
    port: int
    """0 for a Unix socket."""
    _process: BaseProcess
    _reports: Connection

    def problem(self) -> str:
        """Return why it has ended; empty while it runs."""
        if self._process.is_alive():
            return ""
        reason = self._reports.recv() if self._reports.poll() else None
        return str(reason or f"the server ended with status {self._process.exitcode}")


@contextmanager
def owned_server(
    options: Mapping[str, Any],
    launcher: Launcher,
    *,
    deadlines: Deadlines | None = None,
    log: Path | None = None,
    environment: Mapping[str, str] | None = None,
    policy: RestartPolicy | None = POLICY,
    unix_socket: Path | None = None,
) -> Iterator[OwnedServer]:
    """Run `baton serve` with these settings on a free port of this machine, or on `unix_socket` alone.

    The log is written to `log`, if given. `environment` is added to what the server and its workers inherit. The server
    ends with this process, even if this process is killed. Without a `policy` it is the one of `baton serve`. Raises
    `CommandFailed` if it ends before it listens.
    """
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    given = dict(options) | {"host": HOST, "port": 0, "listen_workers": ""}
    if unix_socket is not None:
        given |= {"tcp": False, "unix_socket": str(unix_socket)}
    arguments = (given, launcher, policy, deadlines, log, dict(environment or {}), theirs)
    process = context.Process(target=_serve, args=arguments)
    _start(process)
    theirs.close()  # otherwise the end of a server that fails to start would go unnoticed
    try:
        try:
            port = ours.recv()
        except EOFError:
            raise CommandFailed("the server ended before it listened; see its log (--log)") from None
        if isinstance(port, str):
            raise CommandFailed(port)
        yield OwnedServer(process.pid or 0, port, process, ours)
    finally:
        process.terminate()
        process.join()


def _start(process: BaseProcess) -> None:
    """Start the process so that it ignores Ctrl-C, which its process group receives too; it is terminated instead."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(
    options: dict[str, Any],
    launcher: Launcher,
    policy: RestartPolicy | None,
    deadlines: Deadlines | None,
    log: Path | None,
    environment: Mapping[str, str],
    reports: Connection,
) -> None:
    """Run in the server's process."""
    Thread(target=_end_with_parent, daemon=True).start()
    os.environ |= environment
    if log is not None:
        with log.open("w") as file:
            os.dup2(file.fileno(), 2)
    configure_logging("gateway", options.get("log_level", "error"))
    try:
        settings = load(options)
        launches = launcher(settings, ChosenModel.choose(settings))
        collect_rarely()
        on_listening = functools.partial(_send_port, reports)
        with PrefixTierPlan.given(settings).opened():
            anyio.run(
                functools.partial(
                    run_daemon,
                    gateway_settings(settings),
                    launches,
                    on_listening=on_listening,
                    policy=policy,
                    deadlines=deadlines,
                )
            )
    except (BindError, CommandFailed, WorkersGaveUp) as error:
        reports.send(str(error))
        sys.exit(1)


def _end_with_parent() -> None:
    """Terminate this process when its parent has ended, which may have been killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "only `owned_server` starts it"
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _send_port(reports: Connection, host: str, port: int) -> None:
    reports.send(port)
