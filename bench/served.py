"""A server in a process of its own, whose workers are started again however often they fail."""

import dataclasses
import functools
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import anyio
import httpx
from prometheus_client.parser import text_string_to_metric_families

from actors.logs import configure_logging
from actors.supervision import RestartPolicy
from actors.worker import Deadlines
from cli.administration import Administration
from cli.chaos.asking import Server
from cli.chaos.watched import Watched
from cli.model import ChosenModel
from cli.serve import gateway_settings, worker_launches
from cli.settings import Settings, load
from gateway.daemon import run_daemon
from gateway.launch import WorkerLaunch

HOST = "127.0.0.1"
READY_TIMEOUT_S = 300.0
POLICY = RestartPolicy(max_failures=64, window_s=1.0, first_delay_s=0.05, max_delay_s=0.25)
"""Each failure is treated as a first one: what is killed again and again is started ever later, and then given up."""

KEEP_ALIVE_S = 2.0
"""A client that leaves while its connection is idle is noticed when this has passed: Hypercorn does not read then."""

Launcher = Callable[[Settings, ChosenModel], Sequence[WorkerLaunch]]
"""What the gateway starts. Travels to another process: a function of a module, perhaps with arguments bound."""


@dataclass(frozen=True)
class Served:
    """A running server."""

    pid: int
    server: Server
    watched: Watched
    client: httpx.Client
    """One connection, which is kept: a new one for each look would be held by the server for a while."""

    def metrics(self) -> dict[str, float]:
        """The samples of `GET /metrics` by name, those of all labels added up."""
        text = self.client.get("/metrics").text
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
        return found


@contextmanager
def served(
    options: dict[str, Any],
    launcher: Launcher = worker_launches,
    deadlines: Deadlines | None = None,
    log: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Served]:
    """`baton serve` with these settings on a free port, all of its workers ready. Its log goes to `log`, if given. It
    and its workers have `environment` besides what they inherit."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(
        target=_serve,
        args=(options | {"host": HOST, "port": 0}, launcher, deadlines, log, dict(environment or {}), theirs),
    )
    process.start()
    theirs.close()  # or a server that ends at once would never be noticed
    try:
        port = ours.recv()
        with httpx.Client(base_url=f"http://{HOST}:{port}", timeout=30.0, trust_env=False) as client:
            watched = Watched(Administration(client))
            watched.wait_until_ready(READY_TIMEOUT_S)
            yield Served(process.pid or 0, Server(HOST, port), watched, client)
    finally:
        process.terminate()
        process.join()


def _serve(
    options: dict[str, Any],
    launcher: Launcher,
    deadlines: Deadlines | None,
    log: Path | None,
    environment: Mapping[str, str],
    listening: Connection,
) -> None:
    """The server's process."""
    os.environ |= environment
    if log is not None:
        with log.open("w") as file:
            os.dup2(file.fileno(), 2)
    configure_logging("gateway", options.get("log_level", "error"))
    settings = load(options)
    launches = launcher(settings, ChosenModel.choose(settings))
    gateway = dataclasses.replace(gateway_settings(settings), keep_alive_s=KEEP_ALIVE_S)
    tell = functools.partial(_tell, listening)
    anyio.run(functools.partial(run_daemon, gateway, launches, on_listening=tell, policy=POLICY, deadlines=deadlines))


def _tell(listening: Connection, host: str, port: int) -> None:
    listening.send(port)
