"""A gateway over real worker processes with the scripted backend."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import httpx
import msgspec

from actors.supervision import RestartPolicy
from actors.worker import Deadlines, WorkerState, WorkerStatus
from actors.worker_process import WorkerProcess
from gateway.app import create_app
from gateway.daemon import WorkerLaunch
from gateway.router import Router
from gateway.server import listen, serve
from gateway.settings import GatewaySettings
from gateway.workers import Role
from workers.spec import ScriptedSpec, WorkerSpec


def launch(
    name: str, *, model: str = "tiny", slots: int = 4, rate: float = 0.0, standby: bool = False, **scripted: Any
) -> WorkerLaunch:
    """A scripted worker; `rate` is its decode steps a second."""
    spec = WorkerSpec(
        name=name,
        model_name=model,
        model_path="",
        backend="scripted",
        max_batch_size=slots,
        log_level="warning",
        scripted=ScriptedSpec(tokens_per_second=rate, **scripted),
    )
    text = msgspec.json.encode(spec).decode()

    def command(endpoint: str, incarnation: int) -> list[str]:
        worker = [sys.executable, "-m", "workers", "--endpoint", endpoint]
        return [*worker, "--incarnation", str(incarnation), "--spec", text]

    return WorkerLaunch(name, model, command, standby)


@dataclass
class Real:
    """A running gateway."""

    port: int
    router: Router
    processes: list[WorkerProcess]
    client: httpx.AsyncClient

    async def until(self, true: Callable[[], bool]) -> None:
        """Poll; the test's time limit ends a wait in vain."""
        while not true():  # noqa: ASYNC110  it is another process that is waited for
            await anyio.sleep(0.01)

    async def ready(self, *names: str) -> None:
        """Until every worker, or those named, take requests."""
        wanted = [process for process in self.processes if not names or process.name in names]
        await self.until(lambda: all(process.status.state is WorkerState.READY for process in wanted))

    def status(self, index: int = 0) -> WorkerStatus:
        return self.processes[index].status


@asynccontextmanager
async def real_gateway(
    *launches: WorkerLaunch, deadlines: Deadlines | None = None, ready: Sequence[str] = (), **settings: Any
) -> AsyncIterator[Real]:
    """A gateway on a free port over these workers, all (or those named) ready. It leaves no process behind."""
    chosen = GatewaySettings(port=0, flush_s=0.1, **settings)
    router = Router(chosen)
    policy = RestartPolicy(first_delay_s=0.01)
    processes = [
        WorkerProcess(each.name, each.command, router, policy=policy, deadlines=deadlines) for each in launches
    ]
    for each, process in zip(launches, processes, strict=True):
        router.add(process, each.name, each.model, Role.STANDBY if each.standby else Role.ACTIVE)
    listener = listen(chosen)
    port = listener.getsockname()[1]
    shutdown = anyio.Event()
    app = create_app(router, chosen)
    async with anyio.create_task_group() as group:
        for process in processes:
            group.start_soon(process.run)
        group.start_soon(lambda: serve(app, chosen, shutdown=shutdown, listener=listener))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
            served = Real(port, router, processes, client)
            await served.ready(*ready)
            yield served
        shutdown.set()
        for process in processes:
            process.stop_nowait()


async def gather(*calls: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Run calls at once; their results in order."""
    results: list[Any] = [None] * len(calls)

    async def one(index: int) -> None:
        results[index] = await calls[index]()

    async with anyio.create_task_group() as group:
        for index in range(len(calls)):
            group.start_soon(one, index)
    return results
