"""A whole gateway in the test's process, and what is left behind at its end (nothing)."""

import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from actors.supervision.deadlines import Deadlines
from actors.supervision.worker import WorkerState, WorkerStatus
from gateway.daemon import run_daemon
from gateway.fleet.launch import WorkerLaunch
from gateway.settings import GatewaySettings


@dataclass
class Watched:
    """The test's view of a daemon in its own process."""

    endpoints: list[str] = field(default_factory=list)
    pids: set[int] = field(default_factory=set)
    states: dict[str, WorkerState] = field(default_factory=dict)
    base: str = ""
    ready: anyio.Event = field(default_factory=anyio.Event)
    expected: int = 0
    ended: anyio.Event = field(default_factory=anyio.Event)

    def saw(self, status: WorkerStatus) -> None:
        self.states[status.name] = status.state
        if status.pid is not None:
            self.pids.add(status.pid)
        if list(self.states.values()).count(WorkerState.READY) == self.expected:
            self.ready.set()

    def spied(self, each: WorkerLaunch) -> WorkerLaunch:
        def command(endpoint: str, incarnation: int) -> Any:
            self.endpoints.append(endpoint.removeprefix("ipc://"))
            return each.command(endpoint, incarnation)

        return replace(each, command=command)

    def assert_nothing_left(self) -> None:
        assert self.pids
        for pid in self.pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        assert self.endpoints
        for path in map(Path, self.endpoints):
            assert not path.exists()
            assert not path.parent.exists()
        with pytest.raises(httpx.ConnectError):
            httpx.get(self.base + "/health/live", trust_env=False)


@asynccontextmanager
async def daemon(
    *launches: WorkerLaunch,
    deadlines: Deadlines | None = None,
    trusted: ssl.SSLContext | bool = False,
    **settings: Any,
) -> AsyncIterator[tuple[Watched, httpx.AsyncClient]]:
    """A daemon in this process, ready; the test ends it by a signal, and nothing may be left then. `trusted`: what its
    client trusts, over TLS."""
    watched = Watched(expected=len(launches))
    scheme = "https" if "tls_cert" in settings else "http"

    def listening(host: str, port: int) -> None:
        watched.base = f"{scheme}://{host}:{port}"

    async def run() -> None:
        workers = [watched.spied(each) for each in launches]
        chosen = GatewaySettings(port=0, **settings)
        await run_daemon(chosen, workers, on_status=watched.saw, on_listening=listening, deadlines=deadlines)
        watched.ended.set()

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await watched.ready.wait()
        async with httpx.AsyncClient(base_url=watched.base, timeout=60, trust_env=False, verify=trusted) as client:
            yield watched, client
        await watched.ended.wait()
    watched.assert_nothing_left()
