"""Workers that somebody kills as they start: one that has ever been ready is never given up."""

import functools
import os
import signal

import anyio
import pytest

from actors.supervision.restart_policy import MAX_FAILED_STARTS
from actors.supervision.worker import WorkerState
from actors.supervision.worker_actor import WorkerRef
from tests.gateway.harness.real import Real, launch, real_gateway
from tests.gateway.harness.serving import COMPLETION
from tests.gateway.harness.traffic import ask
from tests.pids import pid_of

pytestmark = pytest.mark.anyio

KILLS = MAX_FAILED_STARTS + 2
SIGNALS = [signal.SIGKILL, signal.SIGTERM]
"""Not SIGINT: a worker ignores it, and during its first imports Python reports it as a failure of its own."""


async def kill_starts(real: Real, worker: WorkerRef, number: int, count: int) -> None:
    """Kill the next incarnations before they are ready."""
    first = worker.status.incarnation + (worker.status.state is WorkerState.READY)
    for incarnation in range(first, first + count):
        await real.until(functools.partial(runs, worker, incarnation))
        assert worker.status.state in (WorkerState.STARTING, WorkerState.LOADING)
        os.kill(pid_of(worker.status), number)


def runs(worker: WorkerRef, incarnation: int) -> bool:
    return worker.status.incarnation == incarnation and worker.status.pid is not None


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
async def test_a_worker_that_served_is_not_given_up_for_killed_starts(number: int) -> None:
    async with real_gateway(launch("a")) as real:
        (worker,) = real.workers
        os.kill(pid_of(worker.status), signal.SIGKILL)
        await kill_starts(real, worker, number, KILLS)
        answer = await real.client.post("/v1/completions", json=COMPLETION)
        assert answer.status_code == 200, answer.text
        assert worker.status.incarnation == KILLS + 2


async def test_a_standby_is_not_given_up_for_killed_starts() -> None:
    async with real_gateway(launch("a"), launch("b", standby=True)) as real:
        standby = real.workers[1]
        os.kill(pid_of(standby.status), signal.SIGKILL)
        await kill_starts(real, standby, signal.SIGKILL, KILLS)
        await real.ready("a", "b")


async def test_kills_during_a_rolling_restart_only_delay_it() -> None:
    async with real_gateway(launch("a"), launch("b", standby=True)) as real, anyio.create_task_group() as group:
        group.start_soon(kill_starts, real, real.workers[1], signal.SIGKILL, KILLS)
        operation = await ask(real, "/admin/restart?rolling")
        assert operation["outcome"] == "done", operation


async def test_one_that_was_never_ready_is_given_up_with_a_reason() -> None:
    async with real_gateway(launch("a"), launch("b", load_seconds=600.0), ready=("a",)) as real:
        killed = real.workers[1]
        await kill_starts(real, killed, signal.SIGKILL, MAX_FAILED_STARTS)
        await real.until(lambda: killed.status.state is WorkerState.GIVEN_UP)
        assert "killed in 5 starts in a row, and never ready: see whether a memory limit" in killed.status.reason
        assert (await real.client.post("/v1/completions", json=COMPLETION)).status_code == 200
