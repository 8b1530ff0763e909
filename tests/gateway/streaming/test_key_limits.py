"""Limits of API keys on a real socket: in every dialect, and whatever ends a request."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import anyio
import httpx
import openai
import pytest

from gateway.keys.record import KeyLimits, KeyRecord, make_key, make_record
from gateway.routing.model_catalog import CatalogEntry
from protocol.errors import ErrorCode
from protocol.events import Usage
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.serving import CHAT, COMPLETION, Served, open_raw, serving

pytestmark = pytest.mark.anyio

KEY, OPS = make_key(), make_key()
HEADERS = {"authorization": f"Bearer {KEY}"}
MESSAGES = {"model": "tiny", "max_tokens": 8, "messages": CHAT["messages"]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": CHAT,
    "/v1/responses": {"model": "tiny", "input": "hi", "max_output_tokens": 8},
    "/v1/messages": MESSAGES,
    "/api/chat": {"model": "tiny", "messages": CHAT["messages"], "stream": False, "options": {"num_predict": 8}},
    "/api/generate": {"model": "tiny", "prompt": "hi", "stream": False, "options": {"num_predict": 8}},
    "/v1/score": {"model": "tiny", "prompt": "a"},
    "/tokenize": {"model": "tiny", "prompt": "hi"},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": CHAT["messages"]},
}
DIALECTS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat")


def records(limits: KeyLimits) -> list[KeyRecord]:
    return [make_record("alice", KEY, limits), make_record("ops", OPS, KeyLimits(), admin=True)]


def write(file: Path, limits: KeyLimits) -> None:
    file.touch(mode=0o600)
    file.write_text("".join(f"{each.line()}\n" for each in records(limits)))


@asynccontextmanager
async def limited(folder: Path, *names: str, make: Any = None, **limits: Any) -> AsyncIterator[Served]:
    """A gateway whose client has a key with these limits."""
    write(folder / "keys", KeyLimits(**limits))
    async with serving(*names, make=make, api_keys_file=str(folder / "keys")) as served:
        served.client.headers.update(HEADERS)
        yield served


async def use(served: Served) -> dict[str, int]:
    answer = await served.client.get("/admin/keys", headers={"authorization": f"Bearer {OPS}"})
    (entry,) = answer.json()["keys"]
    assert entry["name"] == "alice"
    found: dict[str, int] = entry["use"]
    return found


async def refused_as(served: Served, path: str) -> httpx.Response:
    answer = await served.client.post(path, json=BODIES[path])
    assert answer.status_code == 429
    assert answer.headers["content-type"] == "application/json"
    return answer


@pytest.mark.parametrize("path", BODIES)
async def test_a_key_over_its_requests_is_refused_in_the_format_of_the_dialect(tmp_path: Path, path: str) -> None:
    async with limited(tmp_path, requests_per_minute=1) as served:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: served.client.post("/v1/completions", json=COMPLETION))
            (submit,) = await served.worker.wait_submits(1)
            served.worker.finish(submit.stream)
        answer = await refused_as(served, path)
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        of_anthropic = path.startswith("/v1/messages")
        names = ("anthropic-ratelimit-requests-{}" if of_anthropic else "x-ratelimit-{}-requests").format
        assert (answer.headers[names("limit")], answer.headers[names("remaining")]) == ("1", "0")
        assert sum("ratelimit" in name for name in answer.headers) == 3
        body, text = answer.json(), "this API key may send 1 requests per minute (requests_per_minute)"
        if of_anthropic:
            assert body["type"] == "error"
            assert body["error"] == {"type": "rate_limit_error", "message": text}
        elif path.startswith("/api"):
            assert body == {"error": text}
        else:
            expected = {"message": text, "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded"}
            assert body["error"] == expected
        assert (await use(served))["requests"] == 1
        assert (await served.client.get("/v1/models")).status_code == 200


@pytest.mark.parametrize("keep_alive", ["5m", 0])
async def test_loading_and_unloading_a_model_is_a_request(tmp_path: Path, keep_alive: str | int) -> None:
    async with limited(tmp_path, requests_per_minute=1) as served:
        body = {"model": "tiny", "keep_alive": keep_alive}
        assert (await served.client.post("/api/generate", json=body | {"model": "none"})).status_code == 404
        assert (await served.client.post("/api/generate", json=body)).status_code == 200
        assert (await served.client.post("/api/generate", json=body)).status_code == 429
        assert await use(served) == await use(served) | {"requests": 1, "live": 0}


async def test_a_refusal_does_not_wait_for_the_body(tmp_path: Path) -> None:
    async with limited(tmp_path, max_concurrent=1) as served, anyio.create_task_group() as group:
        group.start_soon(lambda: served.client.post("/v1/completions", json=COMPLETION))
        (submit,) = await served.worker.wait_submits(1)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
        head += "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n"
        async with await anyio.connect_tcp("127.0.0.1", served.port) as stream:
            await stream.send(head.encode())
            assert (await stream.receive()).startswith(b"HTTP/1.1 429")
        served.worker.finish(submit.stream)


async def test_the_clients_of_the_vendors_see_a_rate_limit(tmp_path: Path) -> None:
    async with limited(tmp_path, max_concurrent=1) as served:
        base = f"http://127.0.0.1:{served.port}"
        async with (
            anyio.create_task_group() as group,
            openai.AsyncOpenAI(base_url=f"{base}/v1", api_key=KEY, max_retries=0) as of_openai,
            anthropic.AsyncAnthropic(base_url=base, api_key=KEY, max_retries=0) as of_anthropic,
        ):
            group.start_soon(lambda: served.client.post("/v1/completions", json=COMPLETION))
            (submit,) = await served.worker.wait_submits(1)
            body: Any = CHAT
            with pytest.raises(openai.RateLimitError) as refused:
                await of_openai.chat.completions.create(**body)
            assert refused.value.code == "rate_limit_exceeded"
            assert refused.value.response.headers["retry-after"] == "1"
            messages: Any = MESSAGES
            with pytest.raises(anthropic.RateLimitError) as also:
                await of_anthropic.messages.create(**messages)
            assert also.value.response.headers["retry-after"] == "1"
            served.worker.finish(submit.stream)
        assert (await use(served)) == {
            "requests": 1,
            "refused": 2,
            "prompt_tokens": 2,
            "completion_tokens": 1,
            "live": 0,
        } | await use(served)


End = Callable[[Served, FakeWorker, int], Awaitable[None]]


async def finishes(served: Served, worker: FakeWorker, stream: int) -> None:
    worker.finish(stream, usage=Usage(7, 2))


async def fails(served: Served, worker: FakeWorker, stream: int) -> None:
    worker.fail(stream, ErrorCode.CONTEXT)


async def is_lost(served: Served, worker: FakeWorker, stream: int) -> None:
    worker.die()


async def drains(served: Served, worker: FakeWorker, stream: int) -> None:
    served.router.ends.fail_all("the gateway is shutting down")


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("end", [finishes, fails, is_lost, drains])
async def test_a_place_is_given_back_once_however_a_request_ends(
    tmp_path: Path, path: str, stream: bool, end: End
) -> None:
    write(tmp_path / "keys", KeyLimits(max_concurrent=2))
    async with serving(api_keys_file=str(tmp_path / "keys"), worker_wait_s=0) as served:
        served.client.headers.update(HEADERS)
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(lambda: served.client.post(path, json=BODIES[path] | {"stream": stream}))
            submits = await served.worker.wait_submits(2)
            assert (await use(served))["live"] == 2
            await refused_as(served, path)
            for submit in submits:
                if served.live:
                    await end(served, served.worker, submit.stream)
        counted = await use(served)
        assert (counted["requests"], counted["refused"], counted["live"]) == (2, 1, 0)
        assert counted["prompt_tokens"] == (14 if end is finishes else 0)
        assert counted["completion_tokens"] == (4 if end is finishes else 0)


@pytest.mark.parametrize("tokens", [0, 3])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_is_charged_for_its_prompt_and_what_was_generated(
    tmp_path: Path, stream: bool, tokens: int
) -> None:
    async with limited(tmp_path, tokens_per_minute=1000) as served:
        left = anyio.CancelScope()
        body = COMPLETION | {"prompt": "x" * 300, "max_tokens": 600, "stream": stream}

        async def leave() -> None:
            with left:
                await served.client.post("/v1/completions", json=body)

        async with anyio.create_task_group() as group:
            group.start_soon(leave)
            (submit,) = await served.worker.wait_submits(1)
            refused = await served.client.post("/v1/completions", json=body)
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) == 24  # 400 of 1400 tokens are missing
            for _ in range(tokens):
                served.worker.token(submit.stream, "x", 1)
            left.cancel()
            await served.until(lambda: not served.live)
        counted = await use(served)
        assert counted["prompt_tokens"] == 100
        assert (counted["completion_tokens"], counted["live"]) == (tokens, 0)
        group_of_all = served.client.post("/v1/completions", json=COMPLETION | {"max_tokens": 700})
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: group_of_all)
            second = (await served.worker.wait_submits(2))[1]
            served.worker.finish(second.stream)


@pytest.mark.parametrize("sent", [True, False])
async def test_a_prompt_that_ends_at_its_time_limit_is_charged_if_a_worker_had_it(tmp_path: Path, sent: bool) -> None:
    """Otherwise a client could have any number of prompts computed for nothing."""
    async with limited(tmp_path, tokens_per_minute=1000) as served:
        if not sent:
            served.worker.full = True
        group = served.client.post(
            "/v1/completions", json=COMPLETION | {"prompt": "x" * 300}, headers={"x-request-timeout-s": "0.001"}
        )
        assert (await group).status_code == 504
        assert (await use(served))["prompt_tokens"] == (100 if sent else 0)


async def test_a_client_that_leaves_the_queue_is_not_charged(tmp_path: Path) -> None:
    async with limited(tmp_path, tokens_per_minute=1000) as served:
        served.worker.full = True
        left = anyio.CancelScope()

        async def leave() -> None:
            with left:
                await served.client.post("/v1/completions", json=COMPLETION | {"prompt": "x" * 300})

        async with anyio.create_task_group() as group:
            group.start_soon(leave)
            await served.until(lambda: served.router.waiting() == {"tiny": 1})
            left.cancel()
        await served.until(lambda: served.router.is_idle)
        counted = await use(served)
        assert (counted["prompt_tokens"], counted["live"]) == (0, 0)


async def test_a_request_that_the_gateway_fails_to_admit_gives_its_place_and_its_body_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    async with limited(tmp_path, max_concurrent=1) as served:
        with monkeypatch.context() as patched:
            patched.setattr(served.router._placement, "admit", broken)
            for _ in range(2):
                assert (await served.client.post("/v1/completions", json=COMPLETION)).status_code == 500
        assert (await use(served))["live"] == 0
        assert served.router.bodies.held == 0


async def test_a_prompt_that_was_counted_is_charged_once_for_all_its_choices(tmp_path: Path) -> None:
    async with limited(tmp_path, tokens_per_minute=10_000) as served:
        async with anyio.create_task_group() as group:
            body = COMPLETION | {"prompt": [[1, 2, 3], [4, 5]], "n": 2}
            group.start_soon(lambda: served.client.post("/v1/completions", json=body))
            submits = await served.worker.wait_submits(4)
            for submit, prompt in zip(submits, (3, 3, 2, 2), strict=True):
                served.worker.finish(submit.stream, usage=Usage(prompt, 5, cached_tokens=2))
        counted = await use(served)
        assert (counted["prompt_tokens"], counted["completion_tokens"]) == (5, 20)


async def test_a_stream_that_waits_for_its_client_holds_no_place(tmp_path: Path) -> None:
    async with limited(tmp_path, max_concurrent=1) as served:
        body = COMPLETION | {"stream": True, "stream_options": {"resume_s": 60}}

        async def begin() -> None:
            (submit,) = await served.worker.wait_submits(1)
            served.worker.token(submit.stream, "one", 1)

        async with anyio.create_task_group() as group:
            group.start_soon(begin)
            async with served.client.stream("POST", "/v1/completions", json=body) as response:
                path = f"/v1/streams/{response.headers['x-stream-id']}"
        (submit,) = served.worker.submits
        assert (await use(served))["live"] == 1, "it is generated without its client"
        served.worker.finish(submit.stream, usage=Usage(2, 1))
        assert (await use(served))["live"] == 0
        assert "one" in (await served.client.get(path)).text
        counted = await use(served)
        assert (counted["requests"], counted["live"], counted["prompt_tokens"]) == (1, 0, 2)


async def test_a_response_in_the_background_holds_a_place_until_it_ends(tmp_path: Path) -> None:
    async with limited(tmp_path, max_concurrent=1) as served:
        body = BODIES["/v1/responses"] | {"background": True}
        made = (await served.client.post("/v1/responses", json=body)).json()
        await served.worker.wait_submits(1)
        await refused_as(served, "/v1/responses")
        cancelled = await served.client.post(f"/v1/responses/{made['id']}/cancel", json={})
        assert cancelled.json()["status"] == "cancelled"
        assert (await use(served))["live"] == 0


async def test_a_request_that_the_workers_have_no_room_for_uses_nothing(tmp_path: Path) -> None:
    async with limited(tmp_path, requests_per_minute=1, max_concurrent=1) as served:
        served.worker.full = True
        served.router.admission.drain_nowait()
        for _ in range(2):
            answer = await served.client.post("/v1/completions", json=COMPLETION)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
        assert await use(served) == dict.fromkeys(("requests", "refused", "prompt_tokens", "completion_tokens"), 0) | {
            "live": 0
        }


async def test_a_query_holds_a_place_until_its_answer(tmp_path: Path) -> None:
    async with limited(tmp_path, max_concurrent=1) as served:
        left = anyio.CancelScope()

        async def ask() -> None:
            with left:
                await served.client.post("/tokenize", json=BODIES["/tokenize"])

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await served.worker.wait_queries(1)
            await refused_as(served, "/tokenize")
            left.cancel()
        while (await use(served))["live"]:
            await anyio.lowlevel.checkpoint()


def of_model(name: str) -> FakeWorker:
    return FakeWorker(name, model={"w0": "tiny", "w1": "large"}[name])


@pytest.mark.parametrize("path", [*BODIES, "/api/show"])
async def test_a_model_that_the_key_may_not_use_does_not_exist_for_it(tmp_path: Path, path: str) -> None:
    async with limited(tmp_path, "w0", "w1", make=of_model, models=("large", "absent")) as served:
        for model in ("tiny", "absent", "never"):
            body = {"model": model} if path == "/api/show" else BODIES[path] | {"model": model}
            answer = await served.client.post(path, json=body)
            assert answer.status_code == 404
            text = answer.text.replace('\\"', '"')
            assert f"there is no model '{model}'; available: 'large'" in text
        assert not served.worker.submits
        for model in ("tiny", "absent", "never"):
            loaded = await served.client.post("/api/generate", json={"model": model})
            assert loaded.status_code == 404
            assert f"there is no model '{model}'; available: 'large'" in loaded.text
        assert (await served.client.post("/api/generate", json={"model": "large"})).json()["done"]


async def test_a_key_sees_the_models_that_it_may_use(tmp_path: Path) -> None:
    async with limited(tmp_path, "w0", "w1", make=of_model, models=("large",)) as served:
        get = served.client.get
        version = {"anthropic-version": "2023-06-01"}
        assert [each["id"] for each in (await get("/v1/models")).json()["data"]] == ["large"]
        assert [each["id"] for each in (await get("/v1/models", headers=version)).json()["data"]] == ["large"]
        for path in ("/api/tags", "/api/ps"):
            assert [each["name"] for each in (await get(path)).json()["models"]] == ["large"]
        for headers in ({}, version):
            assert (await get("/v1/models/large", headers=headers)).status_code == 200
            assert (await get("/v1/models/tiny", headers=headers)).status_code == 404
        assert (await get("/v1/models?after_id=tiny", headers=version)).status_code == 404


async def test_a_key_may_use_a_model_by_any_name_if_one_of_them_is_among_its_own(tmp_path: Path) -> None:
    async with limited(tmp_path, "w0", "w1", make=of_model, models=("big",)) as served:
        served.router.pool.catalog.add(CatalogEntry("large", ("big", "huge")))
        served.router.pool.catalog.add(CatalogEntry("tiny", ("small",)))
        for model in ("large", "big", "huge", "big:latest"):
            answer = await served.client.post("/api/generate", json={"model": model})
            assert answer.status_code == 200, model
        for model in ("tiny", "small"):
            assert (await served.client.post("/api/generate", json={"model": model})).status_code == 404
        assert [each["id"] for each in (await served.client.get("/v1/models")).json()["data"]] == ["large"]
        version = {"anthropic-version": "2023-06-01"}
        for headers in ({}, version):
            assert (await served.client.get("/v1/models/huge", headers=headers)).json()["id"] == "large"
            assert (await served.client.get("/v1/models/small", headers=headers)).status_code == 404


@pytest.mark.parametrize("path", BODIES)
async def test_an_alias_works_in_every_dialect(tmp_path: Path, path: str) -> None:
    async with limited(tmp_path) as served:
        served.router.pool.catalog.add(CatalogEntry("tiny", ("small",)))
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: served.client.post(path, json=BODIES[path] | {"model": "small"}))
            await served.until(lambda: bool(served.worker.submits or served.worker.queries))
            group.cancel_scope.cancel()


async def test_a_reload_changes_limits_and_keeps_what_was_used(tmp_path: Path) -> None:
    async with limited(tmp_path, requests_per_minute=1) as served:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: served.client.post("/v1/completions", json=COMPLETION))
            (submit,) = await served.worker.wait_submits(1)
            served.worker.finish(submit.stream)
        await refused_as(served, "/v1/completions")
        ops = {"authorization": f"Bearer {OPS}"}
        write(tmp_path / "keys", KeyLimits(requests_per_minute=2))
        assert (await served.client.post("/admin/keys/reload", json={}, headers=ops)).status_code == 200
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: served.client.post("/v1/completions", json=COMPLETION))
            second = (await served.worker.wait_submits(2))[1]
            served.worker.finish(second.stream)
        await refused_as(served, "/v1/completions")
        assert (await use(served))["requests"] == 2


async def test_the_use_of_keys_is_for_the_administration_and_in_the_metrics(tmp_path: Path) -> None:
    async with limited(tmp_path) as served:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: served.client.post("/v1/completions", json=COMPLETION))
            (submit,) = await served.worker.wait_submits(1)
            served.worker.finish(submit.stream, usage=Usage(2, 5))
        assert (await served.client.get("/admin/keys")).status_code == 401
        metrics = (await served.client.get("/metrics")).text
        for line in (
            'baton_key_requests_total{key="alice"} 1.0',
            'baton_key_refused_total{key="alice"} 0.0',
            'baton_key_tokens_total{key="alice",kind="prompt"} 2.0',
            'baton_key_tokens_total{key="alice",kind="completion"} 5.0',
            'baton_key_live_requests{key="alice"} 0.0',
        ):
            assert line in metrics.splitlines()
        (tmp_path / "keys").write_text(records(KeyLimits())[1].line() + "\n")
        ops = {"authorization": f"Bearer {OPS}"}
        answer = await served.client.post("/admin/keys/reload", json={}, headers=ops)
        assert answer.json()["keys"] == {"names": ["ops"], "added": [], "removed": ["alice"]}
        assert 'key="alice"' not in (await served.client.get("/metrics", headers=ops)).text


async def test_a_server_without_keys_has_no_limits() -> None:
    async with serving() as served:
        stream = await open_raw(served.port, "/v1/completions", COMPLETION)
        (submit,) = await served.worker.wait_submits(1)
        served.worker.finish(submit.stream)
        assert b"x-ratelimit" not in await stream.receive()
        await stream.aclose()
