"""The same over HTTP/2, which the server also speaks on a plain socket."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import httpx
import pytest
from h2.connection import H2Connection
from h2.events import DataReceived, StreamEnded, StreamReset
from hyperframe.frame import Frame, GoAwayFrame

from gateway.app import create_app
from gateway.http2 import EVERY_STREAM, WholeBodies, goaway
from gateway.router import Router
from gateway.server import listen, serve
from gateway.settings import GatewaySettings
from protocol.events import Usage
from tests.gateway.fakes import FakeWorker
from tests.gateway.serving import COMPLETION, Served, events, serving

pytestmark = pytest.mark.anyio


def client(port: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", http1=False, http2=True, trust_env=False, timeout=30)


async def test_streams_share_a_connection() -> None:
    async with serving() as served, client(served.port) as http:
        got: dict[str, list[Any]] = {}

        async def stream(prompt: str) -> None:
            body = COMPLETION | {"stream": True, "prompt": prompt}
            async with http.stream("POST", "/v1/completions", json=body) as response:
                assert response.http_version == "HTTP/2"
                got[prompt] = await events(response)

        async with anyio.create_task_group() as group:
            for prompt in ("a", "b"):
                group.start_soon(stream, prompt)
            submits = await served.worker.wait_submits(2)
            for submit in submits:
                served.worker.token(submit.stream, submit.input.text, 1)  # type: ignore[union-attr]
            for submit in submits:
                served.worker.finish(submit.stream, "!", usage=Usage(1, 1))
        for prompt, found in got.items():
            assert found.pop() == "[DONE]"
            assert "".join(chunk["choices"][0]["text"] for chunk in found) == f"{prompt}!"
        assert served.worker.cancels == []


async def test_a_connection_that_closes_frees_all_its_slots() -> None:
    async with serving() as served:
        async with client(served.port) as http, anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(lambda: http.post("/v1/completions", json=COMPLETION))
            submits = await served.worker.wait_submits(2)
            group.cancel_scope.cancel()
        assert sorted(await served.worker.wait_cancels(2)) == [submit.stream for submit in submits]
        assert served.live == 0


async def test_an_idle_connection_whose_client_leaves_is_closed() -> None:
    async with serving(keep_alive_s=3600) as served:
        async with client(served.port) as http:
            assert (await http.get("/health/live")).http_version == "HTTP/2"
            assert served.listener.connections == 1
        await served.until(lambda: served.listener.connections == 0)


async def test_a_body_over_the_bound_is_refused() -> None:
    async with serving(max_body_bytes=1000) as served, client(served.port) as http:
        response = await http.post("/v1/completions", content=b" " * 1500, headers={"content-type": "application/json"})
        assert (response.status_code, response.http_version) == (413, "HTTP/2")
        assert (await http.get("/health/live")).status_code == 200


@asynccontextmanager
async def whole_stream(served: Served, http: httpx.AsyncClient) -> AsyncIterator[None]:
    """A stream has begun. It ends after the block, and has got everything."""
    got: list[Any] = []

    async def stream() -> None:
        async with http.stream("POST", "/v1/completions", json=COMPLETION | {"stream": True}) as response:
            got.extend(await events(response))

    async with anyio.create_task_group() as group:
        group.start_soon(stream)
        (submit,) = await served.worker.wait_submits(1)
        served.worker.token(submit.stream, "a", 1)
        yield
        served.worker.finish(submit.stream, "b")
    assert got.pop() == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in got) == "ab"


@pytest.mark.parametrize(("path", "status"), [("/v1/completions", 413), ("/nope", 404), ("/health/live", 405)])
async def test_an_answer_to_half_a_body_harms_no_other_stream(path: str, status: int) -> None:
    async with serving(max_body_bytes=1000) as served, client(served.port) as http, whole_stream(served, http):
        response = await http.post(path, content=b" " * 1_000_000, headers={"content-type": "application/json"})
        assert response.status_code == status


async def test_a_body_that_never_ends_is_waited_for_within_its_time() -> None:
    never = anyio.Event()

    async def receive() -> dict[str, Any]:
        await never.wait()
        return {"type": "http.disconnect"}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(_: Any, __: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 400})
        await send({"type": "http.response.body", "body": b"no"})

    await WholeBodies(app, limit_s=0.01)({"type": "http", "http_version": "2"}, receive, send)
    assert [(message.get("body"), message.get("more_body")) for message in sent[1:]] == [(b"no", True), (None, None)]


async def test_many_requests_on_a_connection_end_no_stream_on_it() -> None:
    async with serving() as served, client(served.port) as http, whole_stream(served, http):
        for _ in range(1001):  # Hypercorn's own limit is 1,000
            await http.get("/health/live")


class Patient:
    """A client that goes by RFC 9113: what is under way when it reads GOAWAY it reads to the end. (python-h2 does not,
    so GOAWAY is kept from it.)"""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self._stream = stream
        self._bytes = bytearray()
        self._h2 = H2Connection()
        self._h2.initiate_connection()
        self.last_streams: list[int] = []
        """Of each GOAWAY."""
        self.bodies: dict[int, bytes] = {}
        self.ended: set[int] = set()

    async def ask(self, body: dict[str, Any]) -> int:
        payload = json.dumps(body).encode()
        number: int = self._h2.get_next_available_stream_id()
        head = {":method": "POST", ":scheme": "http", ":authority": "x", ":path": "/v1/completions"}
        self._h2.send_headers(number, [*head.items(), ("content-type", "application/json")])
        self._h2.send_data(number, payload, end_stream=True)
        await self._flush()
        return number

    async def read(self) -> bool:
        """Something that was sent; false at the end."""
        await self._flush()
        try:
            self._bytes += await self._stream.receive()
        except anyio.EndOfStream:
            return False
        while len(self._bytes) >= 9 and len(self._bytes) >= (size := 9 + int.from_bytes(self._bytes[:3])):
            frame = bytes(self._bytes[:size])
            del self._bytes[:size]
            if frame[3] == 0x7:
                self.last_streams.append(int.from_bytes(frame[9:13]))
            else:
                self._hear(frame)
        return True

    def _hear(self, frame: bytes) -> None:
        for event in self._h2.receive_data(frame):
            assert not isinstance(event, StreamReset)
            if isinstance(event, DataReceived):
                self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, StreamEnded):
                self.ended.add(event.stream_id)

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            assert await self.read()

    async def _flush(self) -> None:
        if data := self._h2.data_to_send():
            await self._stream.send(data)


def test_goaway_is_the_rfcs() -> None:
    frame, _ = Frame.parse_frame_header(memoryview(goaway(EVERY_STREAM)[:9]))
    frame.parse_body(memoryview(goaway(EVERY_STREAM)[9:]))
    assert isinstance(frame, GoAwayFrame)
    assert (frame.stream_id, frame.last_stream_id, frame.error_code) == (0, EVERY_STREAM, 0)
    assert goaway(5) == GoAwayFrame(last_stream_id=5).serialize()


async def test_a_connection_that_is_retired_ends_when_its_streams_have() -> None:
    """To the client nothing happens: a stream ends as it should, and the next request is on another connection."""
    async with serving(keep_alive_s=3600) as served, client(served.port) as http, client(served.port) as idle:
        assert (await idle.get("/health/live")).status_code == 200
        async with whole_stream(served, http):
            assert served.listener.connections == 2
            served.listener.retire()
            await served.until(lambda: served.listener.connections == 1)
            assert (await http.get("/health/live")).status_code == 200, "it does not idle: it is served"
        await served.until(lambda: served.listener.connections == 0)
        for each in (http, idle, idle):
            assert (await each.get("/health/live")).status_code == 200
            await served.until(lambda: served.listener.connections == 0)


async def test_a_client_that_never_idles_is_told_in_time_and_its_streams_finish() -> None:
    async with serving(keep_alive_s=0.05) as served, await anyio.connect_tcp("127.0.0.1", served.port) as raw:
        peer = Patient(raw)
        first = await peer.ask(COMPLETION | {"stream": True})
        (one,) = await served.worker.wait_submits(1)
        served.worker.token(one.stream, "a", 1)
        served.listener.stop()
        await peer.until(lambda: bool(peer.last_streams))
        assert peer.last_streams == [EVERY_STREAM]
        second = await peer.ask(COMPLETION | {"stream": True})  # as one that was on its way
        _, two = await served.worker.wait_submits(2)
        served.worker.finish(one.stream, "b")
        await peer.until(lambda: first in peer.ended)
        served.worker.finish(two.stream, "c")
        await peer.until(lambda: second in peer.ended)
        assert all(peer.bodies[each].endswith(b"data: [DONE]\n\n") for each in (first, second))
        while await peer.read():
            pass
        assert peer.last_streams == [EVERY_STREAM, second]
        assert served.worker.cancels == []


async def test_a_server_that_ends_cuts_no_end_of_a_stream() -> None:
    """The response's end goes out before the connection's."""
    chosen = GatewaySettings(port=0, flush_s=5)
    router = Router(chosen)
    worker = FakeWorker("w0").join(router)
    app, shutdown = create_app(router, chosen), anyio.Event()
    with listen(chosen) as listener:
        port = listener.getsockname()[1]
        async with anyio.create_task_group() as group, await anyio.connect_tcp("127.0.0.1", port) as raw:
            group.start_soon(lambda: serve(app, chosen, shutdown=shutdown, listener=listener))
            peer = Patient(raw)
            number = await peer.ask(COMPLETION)
            (submit,) = await worker.wait_submits(1)
            shutdown.set()
            await anyio.lowlevel.checkpoint()
            worker.finish(submit.stream, "a" * 100_000)  # more than the client's window: it must be read out
            while await peer.read():
                pass
            assert number in peer.ended
            assert len(json.loads(peer.bodies[number])["choices"][0]["text"]) == 100_000


@pytest.mark.parametrize("whole", [False, True], ids=["stream", "connection"])
async def test_a_stream_whose_stream_or_connection_broke_is_resumed(whole: bool) -> None:
    body = COMPLETION | {"stream": True, "stream_options": {"resume_s": 60}}
    async with serving() as served, client(served.port) as first, client(served.port) as other:

        async def begin() -> None:
            (submit,) = await served.worker.wait_submits(1)
            for text in "abc":
                served.worker.token(submit.stream, text, 1)

        async with anyio.create_task_group() as group:
            group.start_soon(begin)
            async with first.stream("POST", "/v1/completions", json=body) as response:
                path = f"/v1/streams/{response.headers['x-stream-id']}"
                async for line in response.aiter_lines():
                    if line.startswith("id: "):
                        seen = line.removeprefix("id: ")
                    if '"text":"' in line:
                        break
            if whole:
                await first.aclose()
        served.worker.finish(served.worker.submits[0].stream, "d")
        headers = {"last-event-id": seen}
        again = await (other if whole else first).get(path, headers=headers)
        assert (again.status_code, again.http_version) == (200, "HTTP/2")
        data = [line.removeprefix("data: ") for line in again.text.split("\n") if line.startswith("data: ")]
        assert data.pop() == "[DONE]"
        text = "".join(json.loads(each)["choices"][0]["text"] for each in data)
        assert "abcd".endswith(text)
        assert len(text) < 4
        assert served.worker.cancels == []
