"""One request that a front has read, and the app's side of it: ASGI's `receive` and `send` over the front's link."""

import asyncio
from collections import deque

from starlette.types import Message, Scope

from gateway.fronts.frames import (
    PART_BYTES,
    RESPONSE_WINDOW,
    BodyPart,
    BodyTaken,
    ExchangeEnded,
    ExchangeOpened,
    ResponsePart,
    ResponseStarted,
    ToFront,
)
from gateway.fronts.outbox import FrameOutbox


class RelayedExchange:
    """The request and the response, until the app has ended. Its front reports what the client does.

    `send` behaves as that of an HTTP server in the same process: it waits while the connection takes nothing, the last
    one until the connection has taken everything, and it does nothing once the client has left.
    """

    def __init__(self, opened: ExchangeOpened, outbox: FrameOutbox[ToFront]) -> None:
        self._number = opened.exchange
        self._opened = opened
        self._outbox = outbox
        self._body: deque[BodyPart] = deque()
        self._readable = asyncio.Event()
        self._left = False
        """The client has left, or its connection was lost with the front."""
        self._held = 0
        """Bytes of the response that the connection has not taken."""
        self._delivered = False
        self._room = asyncio.Event()

    def scope(self) -> Scope:
        """The ASGI scope of the request."""
        opened = self._opened
        return {
            "type": "http",
            "asgi": {"spec_version": "2.1", "version": "3.0"},
            "http_version": opened.http_version,
            "method": opened.method,
            "scheme": opened.scheme,
            "path": opened.path,
            "raw_path": opened.raw_path,
            "query_string": opened.query,
            "root_path": "",
            "headers": opened.headers,
            "client": opened.client,
            "server": opened.server,
            "state": {},
            "extensions": {},
        }

    # Reports of the front.

    def add(self, part: BodyPart) -> None:
        """A part of the body has arrived."""
        self._body.append(part)
        self._readable.set()

    def taken(self, count: int) -> None:
        """The connection has taken so many bytes more."""
        self._held -= count
        self._room.set()

    def delivered(self) -> None:
        """The connection has taken the whole response."""
        self._delivered = True
        self._room.set()
        self._readable.set()

    def leave(self) -> None:
        """The client has left."""
        self._left = True
        self._room.set()
        self._readable.set()

    # The app's side.

    async def receive(self) -> Message:
        """See ASGI. After the last byte of the response, or when the client has left, it is `http.disconnect`."""
        while not self._body:
            if self._left or self._delivered:
                return {"type": "http.disconnect"}
            self._readable.clear()
            await self._readable.wait()
        part = self._body.popleft()
        self._outbox.put(BodyTaken(self._number, len(part.body)))
        return {"type": "http.request", "body": part.body, "more_body": part.more}

    async def send(self, message: Message) -> None:
        """See ASGI."""
        if self._left:
            return
        if message["type"] == "http.response.start":
            self._outbox.put(ResponseStarted(self._number, message["status"], message.get("headers", [])))
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if more and len(body) <= PART_BYTES and self._held < RESPONSE_WINDOW:  # as it mostly is
            if body:
                self._put(body, more)
            return
        for start in range(0, max(len(body), 1), PART_BYTES):
            if not await self._has_room():
                return
            part = body[start : start + PART_BYTES]
            self._put(part, more or start + PART_BYTES < len(body))
        while not (more or self._delivered or self._left):
            await self._wait()

    def end(self) -> None:
        """Note that the app has ended: the front ends a response that its client has not taken as a whole, and waits no
        longer where the client has left."""
        if not self._delivered:
            self._outbox.put(ExchangeEnded(self._number))

    async def _has_room(self) -> bool:
        """Wait until the window has room. False if the client has left."""
        while self._held >= RESPONSE_WINDOW and not self._left:
            await self._wait()
        return not self._left

    async def _wait(self) -> None:
        self._room.clear()
        await self._room.wait()

    def _put(self, body: bytes, more: bool) -> None:
        self._held += len(body)
        self._outbox.put(ResponsePart(self._number, body, more), len(body))
