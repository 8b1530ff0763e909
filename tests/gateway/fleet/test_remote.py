"""Workers of other machines, over real TCP with real processes: they serve, die, hang, are drained, and come back."""

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from actors.supervision.deadlines import Deadlines
from actors.supervision.worker import WorkerState
from gateway.models.terms import ModelTerms
from gateway.routing.model_catalog import ModelState
from tests.gateway.fleet.remote import doorway, until_gone
from tests.gateway.harness.real import Real, launch
from tests.gateway.harness.serving import COMPLETION, choices
from tests.gateway.harness.traffic import Traffic
from tests.gateway.harness.traffic import ask as operate
from tests.pids import pid_of

pytestmark = pytest.mark.anyio

LONG = COMPLETION | {"seed": 7, "max_tokens": 60, "ignore_eos": True, "stream": True}
IMPATIENT = Deadlines(hang=2.5)
RATE = 100.0


async def ask(real: Real, fifth: Callable[[], None] = lambda: None) -> str:
    """The text of a stream, which must end well and once. `fifth` is called at its fifth event."""
    return "".join(choice["text"] for choice in await choices(real.client, LONG, fifth))


def live(real: Real, name: str) -> int:
    return len(real.router.pool[name].live)


@asynccontextmanager
async def busy(real: Real) -> AsyncIterator[None]:
    """One stream runs on for the length of the block."""
    async with real.client.stream("POST", "/v1/completions", json=LONG | {"max_tokens": 4000}):
        yield


async def test_it_serves_alone_is_seen_everywhere_and_may_be_gone(tmp_path: Path) -> None:
    async with doorway(tmp_path) as door:
        client = door.real.client
        assert (await client.get("/health/ready")).status_code == 503
        with door.joining("far") as process:
            status = await door.ready("far")
            assert status.address.startswith("127.0.0.1:")
            answer = await client.post("/v1/completions", json=COMPLETION)
            assert len(answer.json()["choices"][0]["text"]) == 8
            assert (await client.get("/health/ready")).json()["models"] == {"tiny": True}
            (shown,) = (await client.get("/admin/workers")).json()["workers"]
            assert (shown["name"], shown["state"], shown["address"]) == ("far", "ready", status.address)
            metrics = (await client.get("/metrics")).text
            assert 'baton_worker_ready{backend="scripted",model="tiny",worker="far"} 1.0' in metrics
            assert 'baton_link_refused_total{reason="key"} 0.0' in metrics
            process.kill()
            assert status.pid is not None
            await until_gone(status.pid, door.real.until)
            await door.real.until(lambda: door.status("far").state is WorkerState.BACKOFF)
            assert (await client.get("/health/ready")).status_code == 503
        assert door.rejected() == {}


async def test_its_streams_go_on_elsewhere_and_it_returns_as_a_new_incarnation(tmp_path: Path) -> None:
    """The same tokens as without the loss, whatever was lost: its process, by a kill or a hang; its supervisor, by a
    hang or a kill, as when its machine or the network fails."""
    async with doorway(tmp_path, launch("near", rate=RATE), deadlines=IMPATIENT) as door:
        real = door.real
        reference = await ask(real)

        async def on_far(harm: Callable[[], None]) -> None:
            def fifth() -> None:
                assert live(real, "far") == 1
                harm()

            assert await ask(real, fifth) == reference

        async with busy(real):
            with door.joining("far", tokens_per_second=RATE) as process:
                first = pid_of(await door.ready("far", 1))
                await on_far(lambda: os.kill(first, signal.SIGKILL))
                second = pid_of(await door.ready("far", 2))
                await on_far(lambda: os.kill(second, signal.SIGSTOP))
                third = pid_of(await door.ready("far", 3))
                await on_far(lambda: process.send_signal(signal.SIGSTOP))
                process.send_signal(signal.SIGCONT)
                fourth = pid_of(await door.ready("far", 4))
                await on_far(process.kill)
            with door.joining("far", tokens_per_second=RATE):
                fifth = pid_of(await door.ready("far", 5))
                await on_far(lambda: None)
        assert len({first, second, third, fifth}) == 4
        assert fourth == third  # only the link was lost: the worker kept its model
        metrics = (await real.client.get("/metrics")).text
        assert 'baton_replays_total{cause="killed",model="tiny",outcome="resumed"} 4.0' in metrics
        assert set(door.rejected()) <= {"taken"}  # it may come again too soon after its failure


async def test_it_can_be_drained_and_restarted_like_any_worker(tmp_path: Path) -> None:
    async with doorway(tmp_path, launch("near", rate=RATE)) as door:
        real = door.real
        reference = await ask(real)

        async def operate(path: str) -> str:
            answer = await real.client.post(path, json={"grace_s": 0.1})
            assert answer.status_code == 202
            while True:
                operation = (await real.client.get("/admin/operation")).json()["operation"]
                if operation["outcome"] != "running":
                    return str(operation["outcome"])
                await anyio.sleep(0.02)

        async with busy(real):
            with door.joining("far", tokens_per_second=RATE):
                before = await door.ready("far")
                async with anyio.create_task_group() as group:

                    def fifth() -> None:
                        assert live(real, "far") == 1
                        group.start_soon(operate, "/admin/workers/far/drain")

                    assert await ask(real, fifth) == reference
                await real.until(lambda: door.rejected().get("taken", 0) > 0)  # it comes again, and is kept out
                assert door.status("far").state is WorkerState.STOPPED
                assert await operate("/admin/workers/far/restart") == "done"
                after = await door.ready("far")
                assert after.incarnation > before.incarnation
                assert after.pid != before.pid


@pytest.mark.exhaustive
async def test_a_rolling_restart_and_a_reload_take_it_along_and_cut_no_stream(tmp_path: Path) -> None:
    """Nobody is refused either. With its old checkpoint it is kept out after a reload, until it comes with the new."""
    async with doorway(tmp_path, launch("near", rate=RATE)) as door:
        real = door.real
        with door.joining("far", tokens_per_second=RATE):
            before = {"near": door.status("near"), "far": await door.ready("far")}
            async with Traffic(real):
                done = await operate(real, "/admin/restart?rolling", grace_s=0.2)
                assert done["outcome"] == "done", done
                for name, status in before.items():
                    assert door.status(name).state is WorkerState.READY
                    assert door.status(name).incarnation > status.incarnation
                assert door.status("far").pid != before["far"].pid
                assert door.rejected().get("model", 0) == 0
                done = await operate(real, "/admin/reload", checkpoint="/models/new", grace_s=0.2)
                assert done["outcome"] == "done", done
                assert done["lines"][-1] == "extra0 stays, for no other worker can take its place"
                await real.until(lambda: door.rejected().get("model", 0) > 0)
                assert door.status("far").state is not WorkerState.READY
                left = door.status("far").incarnation
        async with Traffic(real):
            with door.joining("far", tokens_per_second=RATE, model_path="/models/new"):
                assert (await door.ready("far", left + 1)).state is WorkerState.READY
                done = await operate(real, "/admin/restart?rolling", grace_s=0.2)
                assert done["outcome"] == "done", done
                assert list(real.fleet.members) == ["near", "far"], "the extra ones have left"


async def test_another_checkpoint_is_refused_and_another_name_needs_another_key(tmp_path: Path) -> None:
    async with doorway(tmp_path, launch("near"), names=("far", "other")) as door:
        with door.joining("far", model_path="/models/other"):
            await door.real.until(lambda: door.rejected() != {})
            assert set(door.rejected()) == {"model"}
            assert "far" not in door.real.fleet.members
        with door.joining("far"), door.joining("other", model_name="second"):
            await door.ready("far")
            await door.ready("other")
        assert door.real.router.models.names() == ["tiny", "second"]
        before = door.rejected()["model"]
        with door.joining("other"):
            await door.real.until(lambda: door.rejected()["model"] > before)
        assert door.real.fleet.members["other"].model == "second"


async def test_streams_of_a_remote_worker_do_not_keep_the_model_of_the_server_loaded(tmp_path: Path) -> None:
    """Nor do they end when it is unloaded. An alias of the model is no name for a worker's own."""
    models = [ModelTerms(name="tiny", aliases=("small",), load="first-use", keep_alive_s=0.1)]
    async with doorway(tmp_path, launch("near", rate=RATE), names=("far", "false"), models=models) as door:
        real = door.real
        with door.joining("far", tokens_per_second=RATE), door.joining("false", model_name="small"):
            await door.ready("far")
            async with busy(real):
                assert live(real, "far") == 1
                assert (await operate(real, "/admin/models/tiny/load"))["outcome"] == "done"
                await real.until_state("tiny", ModelState.UNLOADED)
                assert live(real, "far") == 1
            assert await ask(real)
            await real.until(lambda: door.rejected().get("model", 0) > 0)
            assert "false" not in real.fleet.members
