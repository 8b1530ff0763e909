"""A stream of the built-in model moves with its cache rows from one worker process to another."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.fleet.launch import WorkerLaunch
from models import builtin_path
from tests.gateway.harness.real import command_of, gather, real_gateway
from tests.gateway.harness.serving import COMPLETION
from tests.gateway.harness.traffic import ask
from tests.gateway.metrics.test_metrics import scrape
from tests.gateway.test_real_workers import ids, streamed
from workers.faults.plan import Fault
from workers.process.spec import WorkerSpec

pytestmark = pytest.mark.anyio

PROMPT = [at * 7 % 251 + 300 for at in range(300)]
COUNT = 400
BODY = COMPLETION | {
    "prompt": PROMPT,
    "max_tokens": COUNT,
    "ignore_eos": True,
    "temperature": 0.9,
    "seed": 5,
    "return_token_ids": True,
}


def iree(name: str, cache_dir: Path, **options: Any) -> WorkerLaunch:
    spec = WorkerSpec(name, "tiny", str(builtin_path()), backend="iree", max_batch_size=2, workers=2, threads=1)
    slow = Fault("slow", calls=0, seconds=0.004)  # or the stream ends before the drain begins
    chosen = msgspec.structs.replace(spec, cache_dir=str(cache_dir), log_level="warning", faults=(slow,), **options)
    return WorkerLaunch(name, "tiny", command_of(chosen))


@pytest.mark.parametrize("beside", [False, True], ids=["rows alone", "beside a prefix tier and drafts"])
async def test_a_moved_stream_has_the_tokens_of_an_undisturbed_one(
    tmp_path: Path, cache_dir: Path, beside: bool
) -> None:
    pytest.importorskip("iree.runtime")
    options: dict[str, Any] = {}
    if beside:
        options = {"prefix_cache_bytes": 1 << 24, "prefix_cache_dir": str(tmp_path / "prefixes"), "speculate": "auto"}
    async with real_gateway(*(iree(name, cache_dir, **options) for name in "ab")) as real:
        source: list[str] = []

        async def drain() -> None:
            await real.until(lambda: any(len(each.tokens) > 5 for each in real.router.sequences()))
            source.extend(each.worker for each in real.router.sequences())
            assert (await ask(real, f"/admin/workers/{source[0]}/drain"))["outcome"] == "done"

        moved, _ = await gather(lambda: streamed(real, BODY), drain)
        (target,) = {"a", "b"} - {*source}
        seen = await scrape(real, target)
        metrics = (await real.client.get("/metrics")).text
        again = await streamed(real, BODY | {"cache_salt": "other"})
    assert 'baton_row_transfers_total{model="tiny",outcome="moved"} 1.0' in metrics
    assert seen["baton_batch_sequences_started"] == 1
    assert seen["baton_prefix_cache_tokens_total"] > len(PROMPT)
    assert seen["baton_batch_prefill_tokens_total"] < len(PROMPT), "only what was generated meanwhile"
    assert len(ids(moved)) == COUNT
    assert ids(moved) == ids(again)
