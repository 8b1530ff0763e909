"""Workers with real engines that are killed while they compute requests with adapters that were loaded at run time."""

import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.fleet.launch import WorkerLaunch
from tests.checkpoints import make_checkpoint
from tests.gateway.harness.real import command_of, gather, real_gateway
from tests.gateway.harness.serving import COMPLETION
from tests.gateway.test_real_workers import ids, streamed
from tests.workers.checkpoints.lora.lora_files import make_lora
from workers.faults.plan import Fault
from workers.process.spec import WorkerSpec

pytestmark = pytest.mark.anyio

PROMPT = [at * 7 % 251 + 3 for at in range(80)]
BODY = COMPLETION | {
    "prompt": PROMPT,
    "max_tokens": 120,
    "ignore_eos": True,
    "temperature": 0.9,
    "seed": 5,
    "return_token_ids": True,
}


@pytest.mark.exhaustive
@pytest.mark.timeout(300)  # with an empty cache of graphs
@pytest.mark.parametrize("backend", ["mlx", "iree"])
async def test_streams_with_adapters_are_those_that_they_are_alone(
    tmp_path: Path, cache_dir: Path, backend: Any
) -> None:
    """With drafts, a prefix tier, and streams with other adapters and without one beside them."""
    pytest.importorskip({"mlx": "mlx.core", "iree": "iree.runtime"}[backend])
    path = make_checkpoint(tmp_path / "model", layers=2)
    for seed, name in enumerate(("one", "two")):
        make_lora(tmp_path / "adapters" / name, path, seed=seed)
    spec = WorkerSpec("a", "tiny", str(path), backend=backend, max_batch_size=4, workers=2, threads=1)
    options: dict[str, Any] = {
        "device": "cpu" if backend == "mlx" else "",
        "dtype": "float32",
        "context": 256,
        "cache_dir": str(cache_dir),
        "log_level": "warning",
        "runtime_lora": True,
        "max_loras": 2,
        "max_lora_rank": 4,
        "prefix_cache_bytes": 1 << 24,
        "prefix_cache_dir": str(tmp_path / "prefixes"),
        "faults": (Fault("slow", calls=0, seconds=0.004),),  # or they end before the kill
    }
    launches = [
        WorkerLaunch(name, "tiny", command_of(msgspec.structs.replace(spec, name=name, **options))) for name in "ab"
    ]
    models = ("one", "two", "tiny")
    async with real_gateway(*launches, lora_dirs=(str(tmp_path / "adapters"),)) as real:
        for name in models[:2]:
            body = {"lora_name": name, "lora_path": name}
            loaded = await real.client.post("/v1/load_lora_adapter", json=body)
            assert loaded.status_code == 200, loaded.text
        alone = [await streamed(real, BODY | {"model": name, "cache_salt": "alone"}) for name in models]

        def kill() -> None:
            pid = real.router.pool[next(each.worker for each in real.router.sequences() if each.worker)].status.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

        def answering() -> bool:
            return sum(len(each.tokens) > 5 for each in real.router.sequences()) == len(models)

        together: dict[str, Any] = {}

        async def one(name: str) -> None:
            together[name] = await streamed(real, BODY | {"model": name})

        await gather(*(lambda name=name: one(name) for name in models), lambda: real.until(answering, kill))
        metrics = (await real.client.get("/metrics")).text
        assert [ids(together[name]) for name in models] == [ids(each) for each in alone]
        await real.ready("a", "b")
        again = [await streamed(real, BODY | {"model": name}) for name in models]
        assert [ids(each) for each in again] == [ids(each) for each in alone]
    assert len({tuple(ids(each)) for each in alone}) == len(models)
    assert 'cause="killed",model="tiny",outcome="resumed"' in metrics
