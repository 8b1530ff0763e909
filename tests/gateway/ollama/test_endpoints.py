"""Ollama's API over the real server: probes, lists, keys, and streams that survive a worker."""

import json

import anyio
import pytest

from protocol.events import Capabilities, Ready, Usage
from tests.gateway.harness.serving import serving
from tests.gateway.ollama.scenarios import CHAT

pytestmark = pytest.mark.anyio


async def test_clients_probe_the_root() -> None:
    async with serving() as served:
        assert (await served.client.head("/")).status_code == 200
        assert (await served.client.get("/api/version")).json()["version"]


async def test_a_stream_continues_on_another_worker() -> None:
    async with serving("a", "b") as served, anyio.create_task_group() as group:

        async def script() -> None:
            (submit,) = await served.workers[0].wait_submits(1)
            served.workers[0].token(submit.stream, "Hel", 1)
            served.workers[0].die()
            (again,) = await served.workers[1].wait_submits(1)
            assert again.resume == (1,)
            served.workers[1].finish(again.stream, "lo", usage=Usage(4, 2, 0, 5, 6))

        group.start_soon(script)
        response = await served.client.post("/api/chat", json=CHAT)
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert response.headers["content-type"] == "application/x-ndjson"
    assert "".join(line["message"]["content"] for line in lines) == "Hello"
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert (lines[-1]["prompt_eval_count"], lines[-1]["eval_count"]) == (4, 2)
    assert (lines[-1]["prompt_eval_duration"], lines[-1]["eval_duration"]) == (5_000_000, 6_000_000)
    assert lines[-1]["total_duration"] > 0


async def test_the_key_is_a_bearer_token() -> None:
    async with serving(api_key="secret") as served:
        refused = await served.client.get("/api/tags")
        listed = await served.client.get("/api/tags", headers={"authorization": "Bearer secret"})
    assert (refused.status_code, refused.json()) == (401, {"error": "a valid API key is needed"})
    assert [model["name"] for model in listed.json()["models"]] == ["tiny"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"sec-fetch-site": "same-origin"}, 415),
        ({"referer": "http://localhost/"}, 415),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": ""}, 415),
    ],
    ids=str,
)
async def test_the_type_that_curl_sends_is_taken_from_programs_alone(headers: dict[str, str], status: int) -> None:
    sent = {"content-type": "application/x-www-form-urlencoded", **headers}
    async with serving() as served:
        show = await served.client.post("/api/show", content=b'{"model": "tiny"}', headers=sent)
        loaded = await served.client.post("/api/generate", content=b'{"model": "tiny"}', headers=sent)
        strict = await served.client.post("/v1/completions", content=b'{"model": "tiny"}', headers=sent)
    assert (show.status_code, loaded.status_code, strict.status_code) == (status, status, 415)
    assert "curl, -H 'Content-Type: application/json'" in strict.text


async def test_capabilities_are_those_that_all_ready_workers_have() -> None:
    async def shown() -> object:
        return (await served.client.post("/api/show", json={"model": "tiny"})).json()["capabilities"]

    async with serving("a", "b") as served:
        assert await shown() == ["completion"]
        served.workers[0].change(ready=Ready(Capabilities(chat=True, tools=True, reasoning=True)))
        assert await shown() == ["completion"]
        served.workers[1].change(ready=Ready(Capabilities(chat=True, tools=True)))
        assert await shown() == ["completion", "tools"]
        served.workers[1].change(ready=Ready(Capabilities(chat=True, tools=True, reasoning=True)))
        assert await shown() == ["completion", "tools", "thinking"]
        for worker in served.workers:
            worker.change(ready=Ready(Capabilities(infill=True)))
        assert await shown() == ["completion", "insert"]


async def test_a_model_without_a_worker_is_not_running() -> None:
    async with serving() as served:
        assert [model["name"] for model in (await served.client.get("/api/ps")).json()["models"]] == ["tiny"]
        served.worker.die()
        assert (await served.client.get("/api/ps")).json() == {"models": []}
        assert len((await served.client.get("/api/tags")).json()["models"]) == 1


@pytest.mark.parametrize(
    ("capabilities", "stated"),
    [
        (Capabilities(chat=True), ["completion"]),
        (Capabilities(chat=True, tools=True), ["completion", "tools"]),
        (Capabilities(chat=True, tools=True, reasoning=True), ["completion", "tools", "thinking"]),
    ],
)
async def test_a_model_has_the_capabilities_of_its_workers(capabilities: Capabilities, stated: list[str]) -> None:
    async with serving("a", "b") as served:
        for worker in served.workers:
            worker.change(ready=Ready(capabilities, device="cpu-0"))
        shown = await served.client.post("/api/show", json={"model": "tiny"})
        assert shown.json()["capabilities"] == stated
        served.workers[0].change(ready=None)
        served.workers[1].change(ready=None)
        shown = await served.client.post("/api/show", json={"model": "tiny"})
        assert shown.json()["capabilities"] == stated, "as it was when it was loaded last"
