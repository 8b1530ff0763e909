"""HTTP/2 connections: keeps a refused request from failing the others, and ends a connection without losing one."""

import struct

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

EVERY_STREAM = 2**31 - 1
"""The last stream of a first GOAWAY, which announces the end: requests that are on their way are still answered."""


def goaway(last_stream: int) -> bytes:
    """A GOAWAY frame without an error (RFC 9113, 6.8): the client opens no more streams on this connection, those up to
    `last_stream` are answered, and any others were not looked at."""
    length, kind = 8, 0x7
    return struct.pack(">BHBBLLL", 0, length, kind, 0, 0, last_stream, 0)


class WholeBodies:
    """Delays the end of an HTTP/2 response until the body of its request has been read, for at most `limit_s` seconds.

    A server may end a response before it has the whole body, and ask for no more of it with RST_STREAM (RFC 9113, 8.1).
    curl 7.88 and httpx 0.28 then report an error of the stream in place of the response. So an early response (mostly a
    refusal) is sent at once, and ended when the rest of the body has been discarded.
    """

    def __init__(self, app: ASGIApp, limit_s: float) -> None:
        self._app = app
        self._limit_s = limit_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["http_version"] == "2":
            body = _WholeBody(receive, send, self._limit_s)
            await self._app(scope, body.receive, body.send)
        else:
            await self._app(scope, receive, send)


class _WholeBody:
    def __init__(self, receive: Receive, send: Send, limit_s: float) -> None:
        self._receive = receive
        self._send = send
        self._limit_s = limit_s
        self._whole = anyio.Event()

    async def receive(self) -> Message:
        message = await self._receive()
        if not message.get("more_body", False):
            self._whole.set()
        return message

    async def send(self, message: Message) -> None:
        ends = message["type"] == "http.response.body" and not message.get("more_body", False)
        if ends and not self._whole.is_set():
            await self._send({**message, "more_body": True})
            await self._read_out()
            message = {"type": "http.response.body"}
        await self._send(message)

    async def _read_out(self) -> None:
        # The app may be waiting for messages too, and take the last one: so both readers go by the event.
        with anyio.move_on_after(self._limit_s):
            async with anyio.create_task_group() as group:
                group.start_soon(self._discard)
                await self._whole.wait()
                group.cancel_scope.cancel()

    async def _discard(self) -> None:
        while not self._whole.is_set():
            await self.receive()
