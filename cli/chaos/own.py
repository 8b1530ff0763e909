"""A server of one's own to break: in a process of its own, its workers started again however often they fail."""

import functools
import multiprocessing
import os
import signal
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
from cli.model import ChosenModel
from cli.options import CommandFailed
from cli.serve import gateway_settings
from cli.settings import Settings, load
from gateway.daemon import run_daemon
from gateway.fleet.launch import WorkerLaunch

HOST = "127.0.0.1"
POLICY = RestartPolicy(max_failures=64, window_s=1.0, first_delay_s=0.05, max_delay_s=0.25)
"""Each failure is treated as a first one. Here they are many on purpose, and where they count (those from within, and
any on a system that does not say who sent a signal) another policy would wait ever longer, and then give up."""

Launcher = Callable[[Settings, ChosenModel], Sequence[WorkerLaunch]]
"""What the gateway starts. Travels to another process: a function of a module, perhaps with arguments bound."""


@dataclass(frozen=True)
class Own:
    """A server that listens on `HOST`; its workers may still load."""

    pid: int
    port: int


@contextmanager
def own_server(
    options: Mapping[str, Any],
    launcher: Launcher,
    *,
    deadlines: Deadlines | None = None,
    log: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Own]:
    """`baton serve` with these settings on a free port of this machine. Its log goes to `log`, if given. It and its
    workers have `environment` besides what they inherit. It ends with this process, however that ends. Raises
    `CommandFailed` when it ends before it listens."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    told = dict(options) | {"host": HOST, "port": 0, "listen_workers": ""}
    process = context.Process(target=_serve, args=(told, launcher, deadlines, log, dict(environment or {}), theirs))
    _start(process)
    theirs.close()  # or a server that ends at once would never be noticed
    try:
        try:
            port = ours.recv()
        except EOFError:
            raise CommandFailed("the server ended before it listened: its log says why") from None
        yield Own(process.pid or 0, port)
    finally:
        process.terminate()
        process.join()


def _start(process: BaseProcess) -> None:
    """Start it so that a Ctrl-C, which its group gets too, does not end it before it can clean up: it is terminated."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(
    options: dict[str, Any],
    launcher: Launcher,
    deadlines: Deadlines | None,
    log: Path | None,
    environment: Mapping[str, str],
    listening: Connection,
) -> None:
    """The server's process."""
    Thread(target=_end_with_parent, daemon=True).start()
    os.environ |= environment
    if log is not None:
        with log.open("w") as file:
            os.dup2(file.fileno(), 2)
    configure_logging("gateway", options.get("log_level", "error"))
    settings = load(options)
    launches = launcher(settings, ChosenModel.choose(settings))
    tell = functools.partial(_tell, listening)
    anyio.run(
        functools.partial(
            run_daemon, gateway_settings(settings), launches, on_listening=tell, policy=POLICY, deadlines=deadlines
        )
    )


def _end_with_parent() -> None:
    """Whoever is killed cannot end its server."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "only `own_server` starts it"
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _tell(listening: Connection, host: str, port: int) -> None:
    listening.send(port)
