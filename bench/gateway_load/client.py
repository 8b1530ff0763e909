"""A client of many streams at once that does as little as possible for each chunk."""

import asyncio
import json
import time
from dataclasses import dataclass, field


@dataclass
class Received:
    """The totals that the client received on all its streams."""

    gaps: list[float] = field(default_factory=list)
    """Seconds between two reads of one stream."""
    chunks: int = 0
    errors: list[str] = field(default_factory=list)


class StreamClient(asyncio.Protocol):
    """One stream: sends a request, then counts chunks and the time between reads."""

    def __init__(self, request: bytes, received: Received, ended: asyncio.Future[None]) -> None:
        self._request = request
        self._received = received
        self._ended = ended
        self._last = 0.0
        self._begun = False
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._last:
            self._received.gaps.append(now - self._last)
        self._last = now
        if not self._begun:
            self._begun = True
            if b" 200 " not in data[:16]:
                self._received.errors.append(data[:300].decode(errors="replace"))
        self._received.chunks += data.count(b'"index"')
        self._tail = (self._tail + data)[-64:]
        if b'"error"' in data:
            self._received.errors.append(data[:300].decode(errors="replace"))
        if b"data: [DONE]" in self._tail:
            self._end()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._ended.done():
            self._received.errors.append(f"the connection broke off: {error}")
            self._end()

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
        self._transport.close()


async def stream_all(port: int, streams: int, tokens: int) -> tuple[Received, float]:
    """Open `streams` streams at once and read each to its end. Returns also the seconds that it took."""
    body = {"model": "scripted", "prompt": "hello", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    payload = json.dumps(body).encode()
    fields = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}"
    head = f"POST /v1/completions HTTP/1.1\r\n{fields}"
    request = head.encode() + b"\r\n\r\n" + payload
    loop = asyncio.get_running_loop()
    received = Received()
    began = time.perf_counter()

    async def one() -> None:
        ended: asyncio.Future[None] = loop.create_future()
        try:
            await loop.create_connection(lambda: StreamClient(request, received, ended), "127.0.0.1", port)
        except OSError as error:
            received.errors.append(f"no connection: {error}")
            return
        await ended

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(one())
    return received, time.perf_counter() - began
