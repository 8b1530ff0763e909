"""Clients of HTTP/2: httpx, and one that goes by the RFC where python-h2, under httpx, does not."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import httpx
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, StreamEnded, StreamReset

from tests.gateway.harness.serving import COMPLETION, Served, events


def client(port: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", http1=False, http2=True, trust_env=False, timeout=30)


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


class Patient:
    """A client that goes by RFC 9113: what is under way when it reads GOAWAY it reads to the end. (python-h2 does not,
    so GOAWAY is kept from it.)"""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self._stream = stream
        self._bytes = bytearray()
        self._h2 = H2Connection()
        self._h2.initiate_connection()
        self.last_streams: list[int] = []
        """The last stream of each GOAWAY."""
        self.statuses: dict[int, int] = {}
        self.bodies: dict[int, bytes] = {}
        self.ended: set[int] = set()

    async def ask(self, body: dict[str, Any], *, end: bool = True) -> int:
        """Its number. Without `end` its body does not end."""
        payload = json.dumps(body).encode()
        number: int = self._h2.get_next_available_stream_id()
        head = {":method": "POST", ":scheme": "http", ":authority": "localhost", ":path": "/v1/completions"}
        self._h2.send_headers(number, [*head.items(), ("content-type", "application/json")])
        self._h2.send_data(number, payload, end_stream=end)
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
                self._receive_frame(frame)
        return True

    def _receive_frame(self, frame: bytes) -> None:
        for event in self._h2.receive_data(frame):
            assert not isinstance(event, StreamReset)
            if isinstance(event, ResponseReceived):
                self.statuses[event.stream_id] = int(dict(event.headers)[b":status"])
            elif isinstance(event, DataReceived):
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
