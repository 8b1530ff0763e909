"""A stream moves with its cache rows from one worker process to another: off a draining and off a prefill worker."""

import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from gateway.fleet.launch import WorkerLaunch
from models import builtin_path
from tests.checkpoints import make_checkpoint
from tests.gateway.harness.real import Real, command_of, gather, launch, real_gateway
from tests.gateway.harness.serving import COMPLETION
from tests.gateway.harness.traffic import ask
from tests.gateway.metrics.test_metrics import scrape
from tests.gateway.test_real_workers import ids, streamed
from workers.faults.plan import Fault
from workers.prefix_store.block import RowBlock
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


def iree(name: str, cache_dir: Path, path: Path | None = None, **options: Any) -> WorkerLaunch:
    model = str(path or builtin_path())
    spec = WorkerSpec(name, "tiny", model, backend="iree", max_batch_size=2, workers=2, threads=1)
    slow = Fault("slow", calls=0, seconds=0.004)  # or the stream ends before the drain begins
    chosen = msgspec.structs.replace(spec, cache_dir=str(cache_dir), log_level="warning", faults=(slow,), **options)
    return WorkerLaunch(name, "tiny", command_of(chosen))


@pytest.mark.parametrize(
    "beside",
    [
        pytest.param(False, marks=pytest.mark.exhaustive, id="rows alone"),
        pytest.param(True, id="beside a prefix tier and drafts"),
    ],
)
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
            await real.until(lambda: some_tokens(real))
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


@pytest.mark.exhaustive
@pytest.mark.timeout(300)  # with an empty cache of graphs
async def test_a_hybrid_model_goes_on_from_the_tier_and_moves_with_its_state(tmp_path: Path, cache_dir: Path) -> None:
    """One of two workers is killed, and its stream goes on from the rows and the state that it has saved. Once it has
    restarted, a stream moves from one to the other."""
    pytest.importorskip("iree.runtime")
    path, store = make_checkpoint(tmp_path / "model", "granitemoehybrid"), tmp_path / "prefixes"
    body = BODY | {"prompt": [each - 200 for each in PROMPT]}
    options: dict[str, Any] = {"context": 1024, "prefix_cache_bytes": 1 << 24, "prefix_cache_dir": str(store)}
    async with real_gateway(*(iree(name, cache_dir, path, **options) for name in "ab")) as real:
        workers: list[str] = []

        def note() -> None:
            workers.extend(each.worker for each in real.router.sequences())

        def kill_it() -> None:
            note()
            pid = real.router.pool[workers[0]].status.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

        async def drain() -> None:
            await real.until(lambda: some_tokens(real), act=note)
            assert (await ask(real, f"/admin/workers/{workers[-1]}/drain"))["outcome"] == "done"

        kill = lambda: real.until(lambda: some_tokens(real) and saved_states(store) > 0, act=kill_it)  # noqa: E731
        killed, _ = await gather(lambda: streamed(real, body), kill)
        of_both = [await scrape(real, name) for name in "ab"]
        await real.ready("a", "b")
        moved, _ = await gather(lambda: streamed(real, body | {"cache_salt": "moved"}), drain)
        metrics = (await real.client.get("/metrics")).text
        again = await streamed(real, body | {"cache_salt": "other"})
    assert [sum(each[f"baton_prefix_tier_{name}_total"] for each in of_both) for name in ("hits", "failures")] == [1, 0]
    assert sum(each["baton_prefix_tier_tokens_total"] for each in of_both) >= len(PROMPT) // 64 * 64
    assert 'baton_row_transfers_total{model="tiny",outcome="moved"} 1.0' in metrics
    assert ids(killed) == ids(moved) == ids(again)
    assert len(ids(again)) == COUNT


def some_tokens(real: Real) -> bool:
    return any(len(each.tokens) > 5 for each in real.router.sequences())


def saved_states(store: Path) -> int:
    """The number of files of states, which follow a block by a name that is derived from its own."""
    names = {file.name for file in store.glob("*-*") if len(file.name) == 65}
    blocks = (RowBlock(*map(bytes.fromhex, name.split("-"))) for name in names)
    return len({block.state.name for block in blocks} & names)


@pytest.mark.exhaustive
async def test_a_prompt_that_a_prefill_worker_computed_has_the_tokens_of_another_run(cache_dir: Path) -> None:
    pytest.importorskip("iree.runtime")
    launches = [iree("d", cache_dir, role="decode"), iree("p", cache_dir, role="prefill")]
    async with real_gateway(*launches, long_prompt_tokens=len(PROMPT)) as real:
        done = anyio.Event()

        async def decode() -> None:
            await streamed(real, BODY | {"prompt": [300], "max_tokens": 1500}, began=done)

        async def ask_beside() -> list[Any]:
            await done.wait()
            await real.until(lambda: all(len(each.tokens) > 1 for each in real.router.sequences()))
            return await streamed(real, BODY)

        _, moved = await gather(decode, ask_beside)
        metrics = (await real.client.get("/metrics")).text
        seen = [await scrape(real, name) for name in "dp"]
        again = await streamed(real, BODY | {"cache_salt": "other"})
        workers = (await real.client.get("/admin/workers")).json()["workers"]
    assert {each["name"]: each["phases"] for each in workers} == {"d": "decode", "p": "prefill"}
    assert 'baton_row_transfers_total{model="tiny",outcome="moved"} 1.0' in metrics
    assert seen[1]["baton_batch_prefill_tokens_total"] == len(PROMPT)
    assert seen[0]["baton_batch_prefill_tokens_total"] < len(PROMPT), "only what was generated meanwhile"
    assert len(ids(moved)) == COUNT
    assert ids(moved) == ids(again)


def long_one(real: Real) -> Any:
    return next((each for each in real.router.sequences() if each.limit == COUNT), None)


STAGES: dict[str, Callable[[Real], bool]] = {
    "in the prompt": lambda real: (each := long_one(real)) is not None and each.worker == "p" and not each.tokens,
    "in the transfer": lambda real: real.router._transfers.moves(real.router.pool["p"]),
    "after it": lambda real: (each := long_one(real)) is not None and each.worker == "d" and len(each.tokens) > 5,
}


@pytest.mark.parametrize(
    ("stage", "victim", "recurrent"),
    [
        *((stage, victim, False) for stage in STAGES for victim in "dp"),
        ("in the transfer", "p", True),
        ("after it", "d", True),
    ],
)
async def test_a_stream_goes_on_when_either_worker_is_killed(stage: str, victim: str, recurrent: bool) -> None:
    launches = [
        launch("d", rate=200.0, role="decode", recurrent=recurrent),
        launch("p", rate=200.0, role="prefill", prefill_tokens_per_second=2000.0, recurrent=recurrent),
    ]
    body = BODY | {"prompt": [each % 90 + 33 for each in PROMPT], "max_tokens": 300}
    async with real_gateway(*launches, long_prompt_tokens=len(PROMPT)) as real:
        decoding = anyio.Event()

        async def ask_beside() -> list[Any]:
            await decoding.wait()
            return await streamed(real, body | {"max_tokens": COUNT})

        async def kill() -> None:
            pid = real.router.pool[victim].status.pid
            assert pid is not None
            await real.until(functools.partial(STAGES[stage], real), act=lambda: os.kill(pid, signal.SIGKILL))

        beside, asked, _ = await gather(
            lambda: streamed(real, body | {"prompt": [65]}, began=decoding), ask_beside, kill
        )
        again = await streamed(real, body | {"max_tokens": COUNT, "cache_salt": "other"})
    assert len(ids(beside)) == 300
    assert len(ids(asked)) == COUNT
    assert ids(asked) == ids(again)
