"""A gateway whose workers compute in the test's loop."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel

from tests.gateway.harness.engines import EngineWorker
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.serving import Served, serving
from workers.engine.runner import Runner
from workers.scripted.pooling import ScriptedPooling


@asynccontextmanager
async def stepped(
    *names: str,
    pooling: ScriptedPooling = "vectors",
    slots: int = 4,
    runner: Callable[[], Runner] | None = None,
    **settings: Any,
) -> AsyncIterator[Served]:
    """Workers that step whenever they have something to compute, and the loop is idle."""

    def make(name: str) -> FakeWorker:
        return EngineWorker(name, slots=slots, pooling=pooling, runner=runner)

    async def run(served: Served) -> None:
        while True:
            for worker in served.workers:
                assert isinstance(worker, EngineWorker)
                worker.answer()
                if not worker.idle:
                    worker.step()
            await anyio.lowlevel.checkpoint()

    async with serving(*names, make=make, **settings) as served, anyio.create_task_group() as group:
        group.start_soon(run, served)
        yield served
        group.cancel_scope.cancel()
