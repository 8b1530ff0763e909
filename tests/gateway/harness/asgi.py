"""A client of the app without a socket: for tests in which time is virtual."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
from starlette.types import ASGIApp, Message


def without_comments(sent: bytes) -> bytes:
    """Server-sent events without their comment lines."""
    return b"".join(line for line in sent.splitlines(keepends=True) if not line.startswith(b":"))


class Connection:
    """One request and what came of it. `leave` ends it as a client does that hangs up."""

    unfinished = False
    """More of the body is to come, and never does."""

    def __init__(
        self,
        app: ASGIApp,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        query: str = "",
        **headers: str,
    ) -> None:
        self._app = app
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        self._scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": [(b"content-type", b"application/json"), *raw],
        }
        self._send, self._receive = anyio.create_memory_object_stream[Message](8)
        content = b"" if body is None else json.dumps(body).encode()
        self._send.send_nowait({"type": "http.request", "body": content, "more_body": self.unfinished})
        self._news = anyio.Event()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.whole = False
        """The answer has its end."""
        self.ended = anyio.Event()
        self.stalled = False
        """The client takes nothing more."""
        self.broken = False
        """The server cannot send any more, which ASGI reports by an `OSError`."""

    async def run(self) -> None:
        try:
            await self._app(self._scope, self._receive.receive, self._receive_message)
        except* OSError:
            if not self.broken:
                raise
        finally:
            self._send.close()
            self._receive.close()
            self.ended.set()

    async def _receive_message(self, message: Message) -> None:
        if self.stalled:
            await anyio.sleep_forever()
        if self.broken:
            raise OSError("the connection is closed")
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message.get("body", b"")
            self.whole = not message.get("more_body", False)
        self._news.set()
        await anyio.lowlevel.checkpoint()  # as of a server, what is sent is on its way before it is awaited

    @property
    def events(self) -> list[bytes]:
        """The events so far, comments left out."""
        return [event for event in without_comments(self.body).split(b"\n\n")[:-1] if event]

    @property
    def error(self) -> Any:
        return json.loads(self.body)["error"]

    async def until(self, count: int) -> list[bytes]:
        """Until there are so many events."""
        while len(self.events) < count:
            await self._news.wait()
            self._news = anyio.Event()
        return self.events

    async def started(self) -> None:
        """Until its status is known."""
        while not self.status:
            await self._news.wait()
            self._news = anyio.Event()

    async def leave(self) -> None:
        """Hang up, and wait until the app is done with it."""
        self._send.send_nowait({"type": "http.disconnect"})
        await self.ended.wait()


class UnfinishedRequest(Connection):
    """A client that never sends the end of its body."""

    unfinished = True


class Clients:
    """Opens connections to one app."""

    def __init__(self, app: ASGIApp, group: anyio.abc.TaskGroup) -> None:
        self.app = app
        self._group = group

    def open(
        self, method: str, path: str, body: dict[str, Any] | None = None, /, *, query: str = "", **headers: str
    ) -> Connection:
        return self.start(Connection(self.app, method, path, body, query=query, **headers))

    def start(self, connection: Connection) -> Connection:
        self._group.start_soon(connection.run)
        return connection

    async def ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, /, *, query: str = "", **headers: str
    ) -> Connection:
        """As `open`, and wait for the end."""
        connection = self.open(method, path, body, query=query, **headers)
        await connection.ended.wait()
        return connection


@asynccontextmanager
async def clients(app: ASGIApp) -> AsyncIterator[Clients]:
    async with anyio.create_task_group() as group:
        yield Clients(app, group)
        group.cancel_scope.cancel()
