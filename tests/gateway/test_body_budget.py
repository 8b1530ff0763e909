"""The bytes of all bodies are bounded: of those that arrive, of live requests, and of what a worker may yet read."""

import json
from typing import Any

import anyio
import httpx
import pytest
from starlette.types import Message

from gateway.body_budget import BodyBudget, HeldBody
from gateway.errors import RequestError
from gateway.http.conventions import HttpConventions
from gateway.http.exchange import HttpExchange
from gateway.openai.errors import OpenAIErrors
from gateway.settings import GatewaySettings, GatewaySettingsError
from tests.gateway.harness.serving import Served, serving
from tests.gateway.http.http2 import client

pytestmark = pytest.mark.anyio

HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)


def body(size: int, **fields: Any) -> bytes:
    """A completion of exactly so many bytes."""
    made = json.dumps({"model": "tiny", "prompt": "hi", "max_tokens": 8} | fields).encode()
    return made + b" " * (size - len(made))


async def post(http: httpx.AsyncClient, content: bytes) -> httpx.Response:
    return await http.post("/v1/completions", content=content, headers={"content-type": "application/json"})


def test_the_last_byte_finds_room_and_the_next_does_not() -> None:
    room = BodyBudget(100, 7)
    first, second = HeldBody(room), HeldBody(room)
    first.grow(60)
    second.grow(40)
    with pytest.raises(RequestError, match="max_total_body_bytes is 100") as refused:
        second.grow(1)
    assert (refused.value.status, refused.value.code) == (429, "overloaded")
    assert refused.value.headers == [(b"retry-after", b"7")]
    assert (room.held, second.size) == (100, 40), "nothing was taken"
    first.release()
    second.grow(60)
    assert room.held == 100


def test_a_body_counts_until_it_is_released() -> None:
    room = BodyBudget(100, 1)
    held = HeldBody(room)
    held.grow(10)
    assert held.need() is held
    held.release()
    assert room.held == 10
    held.release()
    assert room.held == 0


def test_no_body_may_be_larger_than_all_of_them() -> None:
    assert GatewaySettings(max_body_bytes=1000, max_total_body_bytes=1000)
    with pytest.raises(GatewaySettingsError, match="max_body_bytes is over max_total_body_bytes"):
        GatewaySettings(max_body_bytes=1001, max_total_body_bytes=1000)


@pytest.mark.parametrize("over", [0, 1], ids=["at the bound", "over"])
@pytest.mark.parametrize("http2", [False, True], ids=["HTTP/1.1", "HTTP/2"])
async def test_live_requests_and_one_that_arrives_share_the_room(over: int, http2: bool) -> None:
    async with (
        serving(max_body_bytes=100_000, max_total_body_bytes=150_000, retry_after_s=7) as served,
        client(served.port) as second,
        anyio.create_task_group() as group,
    ):
        http = second if http2 else served.client
        group.start_soon(post, http, body(100_000))
        (live,) = await served.worker.wait_submits(1)
        if over:
            refused = await post(http, body(50_001))
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "7")
            assert "max_total_body_bytes" in refused.json()["error"]["message"]
            served.worker.finish(live.stream)
            assert served.router.bodies.held == 0
        group.start_soon(post, http, body(50_000 + over))
        submits = await served.worker.wait_submits(2)
        served.worker.finish(submits[1].stream)
        if not over:
            served.worker.finish(live.stream)


@pytest.mark.parametrize("n", [2, 3], ids=["at the bound", "over"])
async def test_each_choice_of_a_prompt_takes_its_room(n: int) -> None:
    async with serving(max_body_bytes=100, max_total_body_bytes=299) as served, anyio.create_task_group() as group:
        group.start_soon(post, served.client, body(99))
        await served.worker.wait_submits(1)
        if n == 3:
            assert (await post(served.client, body(99, n=3))).status_code == 429
            assert served.router.bodies.held == 99
        else:
            group.start_soon(post, served.client, body(99, n=2))
            await served.worker.wait_submits(3)
            assert served.router.bodies.held == 3 * 99
        for submit in served.worker.submits:
            served.worker.finish(submit.stream)


async def test_a_request_that_could_never_have_room_gets_no_retry_after() -> None:
    async with serving(max_body_bytes=100, max_total_body_bytes=150) as served:
        refused = await post(served.client, body(99, n=2))
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")


async def half(served: Served) -> anyio.abc.SocketStream:
    """A client that has sent 60 bytes of 100, which were received."""
    stream = await anyio.connect_tcp("127.0.0.1", served.port)
    await stream.send(HEAD % 100 + b" " * 60)
    await served.until(lambda: served.router.bodies.held == 60)
    return stream


async def test_a_client_that_leaves_in_the_middle_gives_its_room_back() -> None:
    async with serving(max_body_bytes=100, max_total_body_bytes=150) as served:
        async with await half(served):
            assert (await post(served.client, body(91))).status_code == 429
        await served.until(lambda: served.router.bodies.held == 0)


async def test_a_slow_client_keeps_its_room_for_its_time_only() -> None:
    async with serving(max_body_bytes=100, body_timeout_s=0.05) as served, await half(served) as stream:
        assert (await stream.receive()).startswith(b"HTTP/1.1 408 ")
        await served.until(lambda: served.router.bodies.held == 0)


async def test_what_came_of_a_slow_body_is_not_kept_until_its_client_has_its_answer() -> None:
    """On HTTP/2 an answer only ends with its request."""
    room, settings = BodyBudget(100, 1), GatewaySettings(body_timeout_s=0.01)
    sends, receives = anyio.create_memory_object_stream[Message](1)
    sends.send_nowait({"type": "http.request", "body": b" " * 60, "more_body": True})

    async def nothing(_: Message) -> None: ...

    held = HeldBody(room)
    with sends, receives, pytest.raises(RequestError) as late:
        await HttpExchange({"headers": []}, receives.receive, nothing, settings, HttpConventions(OpenAIErrors())).body(
            held
        )
    assert (late.value.status, room.held) == (408, 0)
    held.release()
    assert room.held == 0


async def test_what_is_refused_for_its_size_takes_no_room_while_it_is_read() -> None:
    async with serving(max_body_bytes=100) as served, await anyio.connect_tcp("127.0.0.1", served.port) as stream:
        await stream.send(HEAD % 180 + b" " * 100)
        await served.until(lambda: served.router.bodies.held == 100)
        await stream.send(b" " * 70)
        await served.until(lambda: served.router.bodies.held == 0)
        await stream.send(b" " * 10)
        assert (await stream.receive()).startswith(b"HTTP/1.1 413 ")


async def test_a_cancelled_request_counts_until_its_worker_has_read_it() -> None:
    async with serving(max_body_bytes=100) as served:
        async with await anyio.connect_tcp("127.0.0.1", served.port) as stream:
            await stream.send(HEAD % 100 + body(100))
            (submit,) = await served.worker.wait_submits(1)
        await served.worker.wait_cancels(1)
        assert (served.live, served.router.bodies.held) == (0, 100)
        served.worker.say_cancelled(submit.stream)
        assert served.router.bodies.held == 0


async def test_a_lost_worker_will_not_read_it() -> None:
    async with serving("a", "b", max_body_bytes=100) as served, anyio.create_task_group() as group:
        first, second = served.workers
        group.start_soon(post, served.client, body(100))
        await first.wait_submits(1)
        first.die()
        (replayed,) = await second.wait_submits(1)
        assert served.router.bodies.held == 100, "once, wherever it is"
        second.finish(replayed.stream)
        assert served.router.bodies.held == 0


async def test_an_answer_that_is_kept_for_its_client_does_not_keep_its_prompt() -> None:
    async with serving(max_body_bytes=200) as served:
        wanted = body(200, stream=True, stream_options={"resume_s": 60})
        async with await anyio.connect_tcp("127.0.0.1", served.port) as stream:
            await stream.send(HEAD % 200 + wanted)
            (submit,) = await served.worker.wait_submits(1)
            served.worker.token(submit.stream, "x", 1)
            await stream.receive()
        served.worker.finish(submit.stream)
        assert served.router.bodies.held == 0
        shown = (await served.client.get("/metrics")).text
        assert "baton_body_bytes 0.0" in shown
        assert 'baton_resumable_streams{state="read"} 0.0' in shown
