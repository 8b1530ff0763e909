"""Models that are loaded and unloaded under requests, over real worker processes."""

import json
import os
import re
import signal
from typing import Any

import anyio
import httpx
import pytest

from gateway.models.terms import ModelTerms, ModelUnavailable
from gateway.routing.model_catalog import ModelState
from tests.gateway.harness.real import Real, gather, launch, real_gateway
from tests.gateway.harness.serving import COMPLETION, events
from workers.faults.plan import Fault

pytestmark = pytest.mark.anyio


def lazy(name: str, bytes_: int = 0, **terms: Any) -> ModelTerms:
    return ModelTerms(name=name, load="first-use", bytes=bytes_, **terms)


async def complete(real: Real, model: str, **fields: Any) -> httpx.Response:
    return await real.client.post("/v1/completions", json=COMPLETION | {"model": model} | fields)


async def stream(real: Real, model: str, tokens: int, began: anyio.Event | None = None) -> list[int]:
    """The token ids of a whole stream."""
    body = COMPLETION | {"model": model, "max_tokens": tokens, "ignore_eos": True, "stream": True, "temperature": 0}
    async with real.client.stream("POST", "/v1/completions", json=body | {"return_token_ids": True}) as response:
        assert response.status_code == 200, await response.aread()
        if began is not None:
            began.set()
        chunks = await events(response)
    assert chunks[-1] == "[DONE]"
    return [token for chunk in chunks[:-1] for choice in chunk["choices"] for token in choice["token_ids"]]


async def operate(real: Real, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Start an operation, and wait for its end."""
    answer = await real.client.post(path, json=body or {})
    assert answer.status_code == 202, answer.text
    operation: dict[str, Any] = answer.json()["operation"]
    while operation["outcome"] == "running":
        await anyio.sleep(0.01)
        operation = (await real.client.get("/admin/operation")).json()["operation"]
    return operation


async def test_a_request_loads_its_model_and_leaves_others_alone() -> None:
    models = [ModelTerms(name="a"), lazy("b", aliases=("bee",), context=512, quantization="int4")]
    async with real_gateway(launch("w0", model="a"), launch("w1", model="b"), models=models, ready=["w0"]) as real:
        listed = {each["id"]: each for each in (await real.client.get("/v1/models")).json()["data"]}
        assert (listed["a"]["state"], listed["b"]["state"]) == ("loaded", "unloaded")
        assert (listed["b"]["aliases"], listed["b"]["max_model_len"]) == (["bee"], 512)
        assert (listed["b"]["quantization"], listed["b"]["capabilities"]) == ("int4", None)
        assert listed["a"]["capabilities"]["tools"] is False
        assert listed["a"]["capabilities"]["vision"] is False
        assert (await real.client.get("/health/ready")).json()["states"] == {"a": "loaded", "b": "unloaded"}
        answer = await complete(real, "bee")
        assert (answer.status_code, answer.json()["model"]) == (200, "b")
        assert real.state("b") is ModelState.LOADED
        assert (await real.client.get("/v1/models/bee")).json()["capabilities"]["structured_output"] is True
        assert (await complete(real, "c")).status_code == 404


async def test_all_models_of_the_start_are_loaded() -> None:
    models = [ModelTerms(name="a"), ModelTerms(name="b"), lazy("c")]
    workers = [launch(f"w{number}", model=name) for number, name in enumerate("abc")]
    async with real_gateway(*workers, models=models, ready=["w0", "w1"]) as real:
        assert {name: real.state(name).value for name in "abc"} == {"a": "loaded", "b": "loaded", "c": "unloaded"}
        assert (await complete(real, "b")).status_code == 200


async def test_a_stream_gets_comments_while_its_model_loads() -> None:
    models = [lazy("a")]
    slow = launch("w0", model="a", load_seconds=0.5)
    async with real_gateway(slow, models=models, waiting_comment_s=0.05) as real:
        body = COMPLETION | {"model": "a", "stream": True}
        async with real.client.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200
            lines = [line async for line in response.aiter_lines()]
    assert lines[0].startswith(":")
    assert "data: [DONE]" in lines


async def test_a_server_is_ready_while_a_request_loads_its_only_model() -> None:
    """A load balancer must not take it for broken because it is used. While models of the start load, it is not."""
    slow = launch("w0", model="a", load_seconds=60)
    for models, status in (([lazy("a")], 200), ([ModelTerms(name="a")], 503)):
        async with real_gateway(slow, models=models) as real, anyio.create_task_group() as group:
            group.start_soon(complete, real, "a")
            await real.until_state("a", ModelState.LOADING)
            for path in ("/health", "/health/ready"):
                assert (await real.client.get(path)).status_code == status
            assert real.state("a") is ModelState.LOADING
            group.cancel_scope.cancel()


async def test_a_query_waits_for_its_model() -> None:
    async with real_gateway(launch("w0", model="a"), models=[lazy("a", aliases=("b",))]) as real:
        answer = await real.client.post("/tokenize", json={"model": "b", "prompt": "abc"})
        assert (answer.status_code, answer.json()["count"]) == (200, 3)


async def test_a_load_that_fails_answers_those_that_wait_with_the_reason_and_is_tried_again_later() -> None:
    broken = launch("w0", model="a", faults=[Fault("refuse_load", incarnation=1)])
    async with real_gateway(broken, launch("w1", model="b"), models=[lazy("a"), lazy("b")]) as real:
        first, second = await gather(lambda: complete(real, "a"), lambda: complete(real, "a", stream=True))
        for answer in (first, await complete(real, "a")):
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "unavailable"
            assert "could not be loaded: worker w0" in answer.json()["error"]["message"]
            assert "retry-after" in answer.headers
        assert "could not be loaded" in second.text
        assert (await complete(real, "b")).status_code == 200
        assert real.state("a") is ModelState.FAILED
        assert (await operate(real, "/admin/models/a/load"))["outcome"] == "done", "the second incarnation loads"
        assert (await complete(real, "a")).status_code == 200


async def test_a_checkpoint_is_fetched_for_the_first_request_and_a_failure_says_its_cause_everywhere() -> None:
    asked, fetched = anyio.Event(), anyio.Event()
    problems = ["no network: the hub cannot be reached"]

    async def prepare() -> ModelTerms:
        asked.set()
        await fetched.wait()
        if problems:
            raise ModelUnavailable(problems.pop())
        return lazy("a", 5, context=77, model_context=99, context_bound="memory", prepare=prepare)

    models = [lazy("a", prepare=prepare), lazy("b")]
    async with real_gateway(launch("w0", model="a"), launch("w1", model="b"), models=models, budget=8) as real:

        async def entry() -> dict[str, Any]:
            found: dict[str, Any] = (await real.client.get("/v1/models/a")).json()
            return found

        async def during() -> None:
            await asked.wait()
            assert ((await entry())["state"], (await entry())["problem"]) == ("downloading", None)
            assert (await real.client.get("/health/ready")).status_code == 200
            assert (await complete(real, "b")).status_code == 200, "others are served meanwhile"
            fetched.set()

        answer, streamed, _ = await gather(
            lambda: complete(real, "a"), lambda: complete(real, "a", stream=True), during
        )
        assert answer.status_code == 503
        assert "model 'a' could not be loaded: no network: the hub" in answer.json()["error"]["message"]
        assert "no network" in streamed.text
        assert ((await entry())["state"], (await entry())["problem"]) == (
            "failed",
            "no network: the hub cannot be reached",
        )
        (listed, _) = (await real.client.get("/admin/models")).json()["models"]
        assert (listed["state"], listed["problem"]) == ("failed", "no network: the hub cannot be reached")
        assert (await operate(real, "/admin/models/a/load"))["outcome"] == "done"
        found = await entry()
        assert (found["state"], found["problem"]) == ("loaded", None)
        assert real.loader is not None
        assert real.loader.residency["a"].bytes == 5
        assert (await operate(real, "/admin/models/a/unload"))["outcome"] == "done"
        assert (await complete(real, "a")).status_code == 200


async def test_a_bug_while_a_model_is_prepared_ends_that_load_alone() -> None:
    async def prepare() -> ModelTerms:
        raise ZeroDivisionError("of a test")

    models = [lazy("a", prepare=prepare), lazy("b")]
    async with real_gateway(launch("w0", model="a"), launch("w1", model="b"), models=models) as real:
        answer = await complete(real, "a")
        assert (answer.status_code, "internal error: ZeroDivisionError" in answer.text) == (503, True)
        assert (await complete(real, "b")).status_code == 200


async def test_what_is_known_of_a_model_before_it_is_loaded_is_listed() -> None:
    models = [lazy("a", context=77, model_context=99, context_bound="memory")]
    async with real_gateway(launch("w0", model="a"), models=models) as real:
        (listed,) = (await real.client.get("/v1/models")).json()["data"]
        assert (listed["max_model_len"], listed["model_context"], listed["context_bound"]) == (77, 99, "memory")


async def test_a_model_is_loaded_before_it_is_known_whether_it_scores_pairs() -> None:
    """The first request to an unloaded cross-encoder, and to a model that makes vectors."""
    workers = [launch("w0", model="a", pooling="pairs"), launch("w1", model="b")]
    async with real_gateway(*workers, models=[lazy("a"), lazy("b")], ready=[]) as real:
        body = {"query": "q", "documents": ["one", "three"]}
        first, again = [await real.client.post("/v1/rerank", json=body | {"model": "a"}) for _ in range(2)]
        assert first.status_code == 200, first.text
        assert first.json()["results"] == again.json()["results"]
        unknown = await real.client.post("/v1/rerank", json=body | {"model": "c"})
        assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "model")
        assert real.state("b") is ModelState.UNLOADED
        score = await real.client.post("/v1/score", json={"model": "b", "text_1": "q", "text_2": "a"})
        assert score.status_code == 200, score.text


async def test_an_idle_model_is_unloaded_and_its_process_ends() -> None:
    async with real_gateway(launch("w0", model="a"), models=[lazy("a", keep_alive_s=0.1)]) as real:
        assert (await complete(real, "a")).status_code == 200
        await real.until_state("a", ModelState.UNLOADED)
        assert real.status().pid is None
        assert (await complete(real, "a")).status_code == 200


async def test_the_least_recently_used_model_makes_room() -> None:
    models = [lazy(name, 4) for name in "abc"]
    workers = [launch(f"w{number}", model=name) for number, name in enumerate("abc")]
    async with real_gateway(*workers, models=models, budget=8) as real:
        for name in ("a", "b", "a", "c"):
            assert (await complete(real, name)).status_code == 200
        states = {each["id"]: each for each in (await real.client.get("/admin/models")).json()["models"]}
        assert {name: each["state"] for name, each in states.items()} == {"a": "loaded", "b": "unloaded", "c": "loaded"}
        assert states["a"] == states["a"] | {"aliases": [], "bytes": 4, "workers": 1, "keep_alive_s": None}
        assert states["a"]["last_used_s"] >= states["c"]["last_used_s"]


async def test_no_stream_is_lost_while_models_are_swapped_under_load() -> None:
    """Two models that do not fit together have requests without a pause, and a third one has its own memory: each is
    loaded and unloaded many times, by requests and by an operator, and every stream is whole."""
    models = [lazy("a", 8), lazy("b", 8), lazy("c", 1)]
    workers = [launch(f"w{number}", model=name, rate=500) for number, name in enumerate("abc")]
    loads = {"a": 0, "b": 0, "c": 0}

    async with real_gateway(*workers, models=models, budget=9, max_waiting_streams=256) as real:
        assert real.loader is not None
        real.loader.residency.patience_s = 0.2
        expected = {name: await stream(real, name, 40) for name in "abc"}

        async def client(name: str) -> None:
            for _ in range(6):
                assert await stream(real, name, 40) == expected[name]

        async def operator() -> None:
            for _ in range(4):
                assert (await operate(real, "/admin/models/c/reload"))["outcome"] == "done"

        clients = [lambda name=name: client(name) for name in "aabbc"]
        await gather(*clients, operator)
        for name in "abc":
            loads[name] = real.loader.residency[name].loads
        metrics = (await real.client.get("/metrics")).text
    changes = {"a": "loaded", "b": "unloaded"}
    for name, change in changes.items():
        assert re.search(
            rf'^baton_model_changes_total{{change="{change}",model="{name}"}} [1-9]', metrics, re.MULTILINE
        )
    assert 'baton_model_memory_bytes{model="c"} 1.0' in metrics
    assert loads["a"] >= 2
    assert loads["b"] >= 2
    assert loads["c"] >= 5
    assert not re.search(r"^baton_replays_total.* [1-9]", metrics, flags=re.MULTILINE), "no stream was cut"


async def test_an_operator_unloads_a_model_only_when_its_streams_have_ended() -> None:
    worker = launch("w0", model="org/a", rate=200)
    async with real_gateway(worker, models=[ModelTerms(name="org/a", aliases=("a",))], ready=["w0"]) as real:
        began = anyio.Event()

        async def unload() -> None:
            await began.wait()
            operation = await operate(real, "/admin/models/a/unload", {"grace_s": 0.05})
            assert operation["outcome"] == "failed"
            assert "stays loaded" in operation["lines"][-1]
            assert real.state("org/a") is ModelState.LOADED
            operation = await operate(real, "/admin/models/org/a/unload", {"grace_s": 30})
            assert (operation["name"], operation["outcome"]) == ("unload of org/a", "done")

        tokens, _ = await gather(lambda: stream(real, "a", 60, began), unload)
        assert len(tokens) == 60
        assert real.state("org/a") is ModelState.UNLOADED
        assert (await real.client.get("/health")).status_code == 200
        assert (await complete(real, "a")).status_code == 200
        assert (await real.client.post("/admin/models/none/load", json={})).status_code == 404


async def test_workers_are_drained_restarted_and_replaced_one_by_one_as_before() -> None:
    workers = [launch("w0", model="a"), launch("w1", model="a"), launch("w2", model="b")]
    models = [ModelTerms(name="a", bytes=4), lazy("b", 2)]
    async with real_gateway(*workers, models=models, budget=6, ready=["w0", "w1"]) as real:
        assert (await operate(real, "/admin/workers/w0/drain"))["outcome"] == "done"
        assert (await complete(real, "a")).status_code == 200
        assert (await operate(real, "/admin/workers/w1/drain"))["outcome"] == "done"
        assert (await complete(real, "a")).status_code == 503
        assert real.state("a") is ModelState.FAILED
        assert (await operate(real, "/admin/workers/w1/restart"))["outcome"] == "done"
        assert (await complete(real, "a")).status_code == 200
        assert (await operate(real, "/admin/restart?rolling"))["outcome"] == "done"
        assert real.state("b") is ModelState.UNLOADED
        assert (await complete(real, "b")).status_code == 200
        operation = await operate(real, "/admin/restart?rolling", {"model": "a"})
        assert operation["outcome"] == "done"
        assert "memory_budget has no room for another worker of a" in operation["lines"][0]
        assert (await operate(real, "/admin/restart", {"model": "a"}))["outcome"] == "done"
        assert (await operate(real, "/admin/models/b/unload"))["outcome"] == "done"
        operation = await operate(real, "/admin/reload", {"checkpoint": "/other"})
        assert operation["outcome"] == "done"
        assert "b is not loaded: it will be loaded from /other" in operation["lines"]
        assert (await complete(real, "b")).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "workers"),
    [
        ("/admin/restart?rolling", {"model": "a", "grace_s": 0}, 1),
        ("/admin/reload", {"model": "a", "grace_s": 0, "checkpoint": "/other"}, 2),
        ("/admin/models/a/reload", {"grace_s": 0.05}, 1),
    ],
)
async def test_a_model_is_exchanged_without_memory_for_a_second_one_and_its_streams_go_on(
    path: str, body: dict[str, Any], workers: int
) -> None:
    """The load takes longer than a request waits for a worker, which ends no stream that has begun."""
    launches = [launch(f"w{number}", model="a", rate=100, load_seconds=0.3) for number in range(workers)]
    models = [ModelTerms(name="a", bytes=4 * workers)]
    async with real_gateway(*launches, models=models, budget=4 * workers, ready=["w0"], worker_wait_s=0.1) as real:
        await real.ready()
        expected = await stream(real, "a", 80)
        began = [anyio.Event() for _ in range(3)]
        most = 0

        def watch() -> None:
            nonlocal most
            most = max(most, sum(each.status.pid is not None for each in real.workers))

        async def exchange() -> dict[str, Any]:
            for event in began:
                await event.wait()
            return await operate(real, path, body)

        real.router.watches.append(watch)
        streams = [lambda event=event: stream(real, "a", 80, event) for event in began]
        *answers, operation = await gather(*streams, exchange)
        assert operation["outcome"] == "done", operation
        assert answers == [expected] * 3
        assert all(each.status.incarnation == 2 for each in real.workers)
        assert most <= workers, "the budget has no room for more"
        metrics = (await real.client.get("/metrics")).text
        assert re.search(r"^baton_replays_total.* [1-9]", metrics, flags=re.MULTILINE), "streams were moved"


@pytest.mark.parametrize("workers", [1, 2])
async def test_streams_outlast_a_checkpoint_that_cannot_be_loaded_in_its_place(workers: int) -> None:
    launches = [launch(f"w{number}", model="a", rate=100) for number in range(workers)]
    models = [ModelTerms(name="a", bytes=4 * workers)]
    async with real_gateway(*launches, models=models, budget=4 * workers, ready=["w0"]) as real:
        await real.ready()
        expected = await stream(real, "a", 80)
        began = [anyio.Event() for _ in range(3)]

        async def exchange() -> dict[str, Any]:
            for event in began:
                await event.wait()
            return await operate(real, "/admin/reload", {"model": "a", "grace_s": 0, "checkpoint": "broken"})

        streams = [lambda event=event: stream(real, "a", 80, event) for event in began]
        *answers, operation = await gather(*streams, exchange)
        assert operation["outcome"] == "failed", operation
        assert answers == [expected] * 3
        assert real.state("a") is ModelState.LOADED


async def test_a_model_without_any_checkpoint_that_loads_has_failed_when_the_operation_has() -> None:
    """The checkpoint from before, too: it is damaged by now."""
    damaged = launch("w0", model="a", rate=100, faults=[Fault("refuse_load", incarnation=3)])
    async with real_gateway(damaged, models=[ModelTerms(name="a", bytes=4)], budget=4, ready=["w0"]) as real:
        began = anyio.Event()

        async def exchange() -> dict[str, Any]:
            await began.wait()
            return await operate(real, "/admin/reload", {"model": "a", "grace_s": 0, "checkpoint": "broken"})

        async def read() -> str:
            body = COMPLETION | {"model": "a", "max_tokens": 80, "ignore_eos": True, "stream": True}
            async with real.client.stream("POST", "/v1/completions", json=body) as response:
                began.set()
                return (await response.aread()).decode()

        text, operation = await gather(read, exchange)
        assert operation["outcome"] == "failed", operation
        assert "worker_lost" in text
        assert real.state("a") is ModelState.FAILED
        answer = await complete(real, "a")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
        assert "could not be loaded: worker w0" in answer.json()["error"]["message"]


async def test_a_worker_that_was_drained_before_its_model_was_loaded_is_not_started_with_it() -> None:
    workers = [launch("w0", model="a"), launch("w1", model="a")]
    async with real_gateway(*workers, models=[lazy("a")]) as real:
        assert (await operate(real, "/admin/workers/w0/drain"))["outcome"] == "done"
        assert (await complete(real, "a")).status_code == 200
        assert (real.status(0).incarnation, real.status(1).incarnation) == (0, 1)
        assert (await operate(real, "/admin/models/a/unload"))["outcome"] == "done"
        assert (await operate(real, "/admin/workers/w1/drain"))["outcome"] == "done"
        answer = await complete(real, "a")
        assert (answer.status_code, "were stopped" in answer.json()["error"]["message"]) == (503, True)
        assert (await operate(real, "/admin/workers/w0/restart"))["outcome"] == "done"
        assert (await complete(real, "a")).status_code == 200
        assert (real.status(0).incarnation, real.status(1).incarnation) == (1, 1)


@pytest.mark.parametrize("path", ["/admin/restart", "/admin/restart?rolling"])
async def test_a_model_that_is_just_unloaded_is_not_restarted(path: str) -> None:
    async with real_gateway(launch("w0", model="a"), models=[lazy("a")]) as real:
        assert (await complete(real, "a")).status_code == 200
        pid = real.status().pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)  # so that it cannot end yet
        await real.client.post("/api/generate", json={"model": "a", "keep_alive": 0})
        await real.until_state("a", ModelState.UNLOADING)
        with anyio.fail_after(20):
            assert (await operate(real, path))["outcome"] == "done"
        assert real.state("a") is ModelState.UNLOADING
        os.kill(pid, signal.SIGCONT)
        await real.until_state("a", ModelState.UNLOADED)
        assert (await complete(real, "a")).status_code == 200


class TestOllama:
    async def test_an_empty_prompt_loads_and_a_keep_alive_of_0_unloads(self) -> None:
        async with real_gateway(launch("w0", model="a"), models=[lazy("a", aliases=("llama",))]) as real:
            client = real.client
            assert (await client.get("/api/ps")).json()["models"] == []
            asked = {"model": "llama:latest", "keep_alive": "5m"}
            loaded = await client.post("/api/generate", json=asked)
            assert (loaded.status_code, loaded.json()["done_reason"]) == (200, "load")
            (running,) = (await client.get("/api/ps")).json()["models"]
            assert running["name"] == "a"
            assert not running["expires_at"].startswith("9999")
            assert [each["name"] for each in (await client.get("/api/tags")).json()["models"]] == ["a"]
            unloaded = await client.post("/api/chat", json={"model": "a", "messages": [], "keep_alive": 0})
            assert unloaded.json()["done_reason"] == "unload"
            await real.until_state("a", ModelState.UNLOADED)

    async def test_a_request_says_how_long_its_model_stays(self) -> None:
        async with real_gateway(launch("w0", model="a"), models=[lazy("a")]) as real:
            body = {"model": "a", "prompt": "hi", "stream": False, "keep_alive": 0}
            answer = await real.client.post("/api/generate", json=body)
            assert (answer.status_code, answer.json()["done"]) == (200, True)
            await real.until_state("a", ModelState.UNLOADED)

    async def test_a_load_of_a_model_that_is_to_be_unloaded_succeeds_when_the_model_stays(self) -> None:
        worker = launch("w0", model="a", rate=100)
        async with real_gateway(worker, models=[ModelTerms(name="a")], ready=["w0"]) as real:
            began = anyio.Event()

            async def load() -> None:
                await began.wait()
                await real.client.post("/admin/models/a/unload", json={"grace_s": 0.1})
                loaded = await real.client.post("/api/generate", json={"model": "a"})
                assert (loaded.status_code, loaded.json().get("done_reason")) == (200, "load")
                assert real.state("a") is ModelState.LOADED

            await gather(lambda: stream(real, "a", 60, began), load)

    async def test_a_model_that_cannot_be_loaded(self) -> None:
        broken = launch("w0", model="a", faults=[Fault("refuse_load")])
        async with real_gateway(broken, models=[lazy("a")]) as real:
            answer = await real.client.post("/api/generate", json={"model": "a"})
            assert answer.status_code == 503
            assert "could not be loaded" in json.loads(answer.text)["error"]
