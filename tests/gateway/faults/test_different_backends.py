"""A stream that a worker with another backend continues, from MLX to IREE and back: the answer says so."""

import os
import signal
from typing import Any

import pytest

from cli.config.launch import worker_command
from gateway.fleet.launch import WorkerLaunch
from models import builtin_path
from tests.gateway.harness.real import Real, gather, real_gateway
from tests.gateway.harness.serving import events
from tests.pids import pid_of
from workers.faults.plan import Fault
from workers.process.spec import Backend, WorkerSpec

pytestmark = pytest.mark.anyio

TOKENS = 120
SLOW = Fault("slow", calls=0, seconds=0.01)
"""So that a stream still runs when this process, on a machine that is busy, comes to look at it."""
BODY = {
    "model": "tiny",
    "prompt": "The capital of France is",
    "max_tokens": TOKENS,
    "temperature": 0,
    "ignore_eos": True,
    "return_token_ids": True,
    "stream": True,
    "stream_options": {"include_usage": True},
}


def launch(backend: Backend, *, standby: bool = False) -> WorkerLaunch:
    spec = WorkerSpec(
        backend,
        "tiny",
        str(builtin_path()),
        backend,
        log_level="warning",
        faults=(SLOW,),
    )
    return WorkerLaunch(spec.name, spec.model_name, worker_command(spec), standby)


def active(real: Real) -> str:
    return next(handle.name for handle in real.router.pool if handle.role == "active")


async def ask(real: Real) -> tuple[list[int], dict[str, Any]]:
    """The token ids, and the chunk with the usage."""
    async with real.client.stream("POST", "/v1/completions", json=BODY) as response:
        assert response.status_code == 200
        *chunks, usage, done = await events(response)
    assert done == "[DONE]"
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    return [token for choice in choices for token in choice["token_ids"]], usage


async def replays(real: Real) -> float:
    """The number that a worker of another kind continued."""
    found = 0.0
    for line in (await real.client.get("/metrics")).text.splitlines():
        if line.startswith("baton_replays_total") and 'outcome="continued"' in line:
            found += float(line.split()[-1])
    return found


async def interrupted(real: Real, computing: str) -> tuple[list[int], list[int], dict[str, Any]]:
    """Kill the worker in the middle of a stream. Returns the ids before that, all ids, and the usage."""
    before: list[int] = []

    live = real.router.pool[computing].live

    def kill() -> None:
        before.extend(*(stream.tokens for stream in live.values()))
        os.kill(pid_of(real.fleet.members[computing].status), signal.SIGKILL)

    (ids, usage), _ = await gather(
        lambda: ask(real), lambda: real.until(lambda: any(len(stream.tokens) > 20 for stream in live.values()), kill)
    )
    return before, ids, usage


async def test_a_stream_continues_on_a_worker_with_another_backend_and_reports_it() -> None:
    pytest.importorskip("mlx.core")
    pytest.importorskip("iree.runtime")
    async with real_gateway(launch("mlx"), launch("iree", standby=True)) as real:
        for turn in (1, 2):  # the second time the other way round: the one that was killed stands by
            computing = active(real)
            whole, usage = await ask(real)
            assert "baton" not in usage
            before, ids, usage = await interrupted(real, computing)
            assert len(ids) == TOKENS
            assert ids[: len(before)] == before == whole[: len(before)]
            assert usage["baton"] == {"continued": True}
            assert usage["usage"]["completion_tokens"] == TOKENS
            assert await replays(real) == turn
            assert active(real) != computing
            await real.ready()
