"""The body of a request on its way from the connection to the app."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import Message


class BodyQueue:
    """Messages of one request for the app. The connection calls `put`, the app `receive`.

    Hypercorn 0.17 and 0.18 have a queue of ten messages. A body in more pieces fills it if the app reads none, and then
    the connection waits for room for ever: its last message, that the client has left, waits as well. Here a put never
    waits once the app has ended or answered, and the pieces that it has not read are one message.
    """

    def __init__(self, most: int | None, on_read: Callable[[int], Awaitable[None]]) -> None:
        """`most`: bytes at which `put` waits for the app to read; None when the client is bounded by HTTP/2's window.
        `on_read` is called with the size of what has been read or discarded."""
        self._most = most
        self._on_read = on_read
        self._data = bytearray()
        self._whole = False
        """All of the body has arrived."""
        self._read_whole = False
        self._gone = False
        """The client has left, or has its answer."""
        self._closed = False
        """The app has ended."""
        self._readable = asyncio.Event()
        self._room = asyncio.Event()

    async def put(self, message: Any) -> None:
        """Queue a message of the connection."""
        if message["type"] == "http.disconnect":
            self._gone = True
            await self._release()
            return
        body = message["body"]
        if self._closed or self._gone:
            await self._on_read(len(body))
            return
        self._whole = not message["more_body"]
        self._data += body
        self._readable.set()
        if self._most is not None and not self._whole:
            while len(self._data) >= self._most and not (self._closed or self._gone):
                self._room.clear()
                await self._room.wait()

    async def receive(self) -> Message:
        """The next message, for an ASGI app. Once the client has left it always is `http.disconnect`."""
        while True:
            if self._data or (self._whole and not self._read_whole):
                body = bytes(self._data)
                self._data.clear()
                self._read_whole = self._whole
                self._room.set()
                await self._on_read(len(body))
                return {"type": "http.request", "body": body, "more_body": not self._whole}
            if self._gone:
                return {"type": "http.disconnect"}
            self._readable.clear()
            await self._readable.wait()

    async def close(self) -> None:
        """Discard what has not been read, and what will come."""
        self._closed = True
        await self._release()

    async def _release(self) -> None:
        self._readable.set()
        self._room.set()
        if self._closed and self._data:
            size = len(self._data)
            self._data.clear()
            await self._on_read(size)
