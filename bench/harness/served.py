"""A server with all workers ready, to measure and to break."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from actors.supervision.deadlines import Deadlines
from cli.chaos.http_client import ServerAddress
from cli.chaos.workers_watcher import WorkersWatcher
from cli.client.administration import Administration
from cli.client.owned_server import HOST, Launcher, owned_server
from cli.config.launch import worker_launches

READY_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Served:
    """A running server."""

    pid: int
    server: ServerAddress
    watcher: WorkersWatcher
    client: httpx.Client
    """One connection that is kept: the server would hold a new one for each request for a while."""

    def metrics(self) -> dict[str, float]:
        """The samples of `GET /metrics` by name, summed over labels."""
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
    """Run a server until the block ends; the arguments are those of `owned_server`."""
    with (
        owned_server(options, launcher, deadlines=deadlines, log=log, environment=environment) as own,
        httpx.Client(base_url=f"http://{HOST}:{own.port}", timeout=30.0, trust_env=False) as client,
    ):
        watcher = WorkersWatcher(Administration(client))
        watcher.wait_until_ready(READY_TIMEOUT_S)
        yield Served(own.pid, ServerAddress(HOST, own.port), watcher, client)
