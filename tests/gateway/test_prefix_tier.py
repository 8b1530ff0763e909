"""The prefix tier over real worker processes: what one has computed, its restart and its siblings restore."""

import os
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest

from actors.supervision.worker import WorkerState
from tests.gateway.harness.real import launch, real_gateway
from tests.gateway.harness.serving import COMPLETION
from tests.gateway.metrics.test_metrics import scrape
from tests.gateway.test_real_workers import ids, streamed

pytestmark = pytest.mark.anyio

PROMPT = [at * 7 % 251 for at in range(1000)]
BODY = COMPLETION | {"prompt": PROMPT, "max_tokens": 60, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
BLOCKS = len(PROMPT) // 64


@pytest.mark.parametrize(
    ("standby", "recurrent"),
    [(False, False), (True, False), (True, True)],
    ids=["restart", "standby", "standby with a recurrent state"],
)
async def test_a_stream_that_loses_its_worker_starts_from_the_tier(
    tmp_path: Path, standby: bool, recurrent: bool
) -> None:
    directory = str(tmp_path / "prefixes")
    options: dict[str, Any] = {"rate": 100, "prefix_cache_dir": directory, "recurrent": recurrent}
    others = [launch("b", standby=True, **options)] if standby else []
    async with real_gateway(launch("a", **options), *others, worker_wait_s=60) as real:
        began = anyio.Event()

        async def kill() -> None:
            await began.wait()
            await real.until(lambda: len(list(Path(directory).glob("[0-9a-f]*-*"))) >= BLOCKS + recurrent)
            running = [worker.status for worker in real.workers if worker.status.gauges.slots_active]
            (pid,) = [status.pid for status in running]
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kill)
            killed = ids(await streamed(real, BODY, began))
        names = ("a", "b") if standby else ("a",)
        samples = [await scrape(real, name) for name in names]
        seen = {name: sum(each.get(name, 0) for each in samples) for name in samples[0]}
        again = ids(await streamed(real, BODY | {"cache_salt": "other"}))
    assert killed == again
    assert len(killed) == 60
    assert seen["baton_prefix_tier_hits_total"] == 1
    assert BLOCKS * 64 <= seen["baton_prefix_tier_tokens_total"] == seen["baton_prefix_cache_tokens_total"]
    assert seen["baton_prefix_tier_bytes"] > 0
    assert seen["baton_prefix_tier_failures_total"] == 0


async def test_a_prefix_outlives_the_gateway_in_a_directory_that_is_named(tmp_path: Path) -> None:
    directory = str(tmp_path / "prefixes")
    answers = []
    for _ in range(2):
        async with real_gateway(launch("a", prefix_cache_dir=directory)) as real:
            answers.append((await real.client.post("/v1/completions", json=BODY)).json())
            await real.until(lambda: real.status(0).state is WorkerState.READY)
            await real.until(lambda: len(list(Path(directory).glob("[0-9a-f]*-*"))) >= BLOCKS)
    assert answers[0]["choices"] == answers[1]["choices"]
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert cached == [0, BLOCKS * 64]
