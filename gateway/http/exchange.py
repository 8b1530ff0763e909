"""One HTTP exchange on plain ASGI: reads a body and writes a response, while the client may leave or stall."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

import anyio
import anyio.lowlevel
from starlette.types import Receive, Scope, Send

from gateway.body_budget import HeldBody
from gateway.errors import RefusalCode, RequestError
from gateway.http.access.credentials import presented_key
from gateway.http.access.request_key import request_key
from gateway.http.conventions import HttpConventions
from gateway.http.json_body import check_json_type
from gateway.http.request_record import record_of
from gateway.settings import GatewaySettings

JSON = b"application/json"
Headers = Sequence[tuple[bytes, bytes]]
_EVENT_HEADERS = [
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ClientGone(Exception):
    """Raised when the client left before its body had arrived: no response is needed."""


class HttpExchange:
    """One request and its response. One task uses it, besides the one that waits in `until_gone`."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, settings: GatewaySettings, conventions: HttpConventions
    ) -> None:
        self.token = secrets.token_hex(12)
        """Makes the ids of this exchange unique."""
        self.request_id: str = scope.get("baton.request_id") or self.token
        self.created = int(time.time())
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._scope = scope
        self._receive = receive
        self._send = send
        self._settings = settings
        self.record = record_of(scope)
        self.api_key = request_key(scope)
        """The client's API key, if the server has checked one."""
        self.limit_headers: Headers = ()
        """Headers about the limits of the key, for the response."""
        self._id_headers = conventions.named(self.request_id)
        self.conventions = conventions
        """Those of the path's dialect; while it resumes a stream, those of that stream's dialect."""
        self.begun = False
        """An event stream was started."""
        self._done = False
        self._sending = False
        self._sends = 0
        self._watchdog: asyncio.TimerHandle | None = None

    @property
    def path(self) -> str:
        """The path of the URL."""
        path: str = self._scope["path"]
        return path

    @property
    def query(self) -> str:
        """The query string of the URL."""
        query: bytes = self._scope.get("query_string", b"")
        return query.decode("latin-1")

    def header(self, name: bytes) -> str:
        """A header of the request; empty when it has none. `name` is in lower case."""
        return self._headers.get(name, b"").decode("latin-1").strip()

    @property
    def last_event_id(self) -> str:
        """The event after which the client resumes a stream; empty when it does not."""
        return self.header(b"last-event-id")

    @property
    def key(self) -> bytes:
        """The API key that the client sent, whether one is needed or not; empty without one."""
        return presented_key(self._scope, self.conventions.key_headers) or b""

    @property
    def client(self) -> str:
        """Names the client by its key; empty on a server without keys, where a key that is sent proves nothing."""
        return self.record.key_name

    @property
    def fairness_id(self) -> str:
        """The fairness id that a trusted gateway gave the request; empty without one."""
        found: str = self._scope.get("baton.fairness_id", "")
        return found

    @property
    def delivered(self) -> bool:
        """The last byte of the answer was given to the connection."""
        return self._done and not self._sending

    @property
    def sending(self) -> bool:
        """Events are being sent, and the connection has not taken all of them."""
        return self._sending

    async def body(self, held: HeldBody) -> bytes:
        """Read the whole JSON body, and count its bytes in `held`. Raises `ClientGone`, and `RequestError` for another
        content type, a size over a bound or a slow client."""
        bound = self._settings.max_body_bytes
        parts: list[bytes] = []
        size = 0
        problem: RequestError | None = None
        try:
            with anyio.fail_after(self._settings.body_timeout_s):
                # A body slightly over the bound is read to its end, so that its client reads the response.
                async for part in self._parts():
                    size += len(part)
                    if problem is None:
                        problem = self._grow(held, size, part)
                        parts.append(part)
                    if problem is not None:
                        parts.clear()
                        held.shrink()
                    if size > 2 * bound:
                        break
        except TimeoutError as error:
            # Released now: on HTTP/2 the response takes as long again.
            parts.clear()
            held.shrink()
            raise RequestError(RefusalCode.TIMEOUT, "the body did not arrive in time", headers=[CLOSE]) from error
        if problem is not None:
            raise problem
        check_json_type(self._headers, curl_type=self.conventions.curl_type)
        return b"".join(parts)

    async def _parts(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises `ClientGone`."""
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            more = message.get("more_body", False)
            yield message.get("body", b"")

    def _grow(self, held: HeldBody, size: int, part: bytes) -> RequestError | None:
        """Count a part of a body, which has `size` bytes with it. Returns why it is refused, or None."""
        bound = self._settings.max_body_bytes
        if size > bound:
            text = f"the body is over the bound of {bound} bytes"
            return RequestError(RefusalCode.BODY_TOO_LARGE, text, headers=[CLOSE])
        try:
            held.grow(len(part))
        except RequestError as full:
            return full
        return None

    async def respond(self, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> None:
        """Send a whole JSON response. A client that does not take it in time is dropped."""
        self._done = True
        length = (b"content-length", str(len(body)).encode())
        with anyio.move_on_after(self._settings.client_stall_s):
            await self._start(status, [(b"content-type", JSON), length], headers or [])
            await self._send({"type": "http.response.body", "body": body})

    async def respond_in_pieces(self, status: int, pieces: Iterable[bytes]) -> None:
        """Send a large JSON response, rendered while it is sent. Others are served between its pieces. A client that
        does not take a piece in time is dropped."""
        stalled = anyio.CancelScope()
        with stalled:
            stalled.deadline = anyio.current_time() + self._settings.client_stall_s
            await self._start(status, [(b"content-type", JSON)])
            for piece in pieces:
                stalled.deadline = anyio.current_time() + self._settings.client_stall_s
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
                await anyio.lowlevel.checkpoint()  # a send need not yield
            self._done = True
            await self._send({"type": "http.response.body", "body": b""})

    async def respond_empty(self) -> None:
        """Send a 204 response."""
        self._done = True
        with anyio.move_on_after(self._settings.client_stall_s):
            await self._start(204, [])
            await self._send({"type": "http.response.body", "body": b""})

    async def _start(self, status: int, headers: Headers, more: Headers = ()) -> None:
        """Send the status and the headers: the request's id, which every response of an exchange has, before `more`."""
        self.record.started(status)
        every = [*headers, *self._id_headers, *self.limit_headers, *more]
        await self._send({"type": "http.response.start", "status": status, "headers": every})

    async def refuse(self, error: RequestError) -> None:
        """Send an error as the response. The rest of the body is discarded meanwhile: a server whose queue is full of
        it could not end the exchange otherwise."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.until_gone, None)
            await self.respond_error(error)
            group.cancel_scope.cancel()

    async def respond_error(self, error: RequestError) -> None:
        """Send an error as the response, of a request whose body was read."""
        errors = self.conventions.errors
        self.record.reason, error.request_id = error.code, self.request_id
        await self.respond(errors.status(error), errors.body(error), error.headers)

    async def while_connected(self, work: Callable[[anyio.CancelScope], Awaitable[None]]) -> None:
        """Run `work` while the client is connected. Its argument is the scope that is cancelled when the client
        leaves."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.until_gone, group.cancel_scope)
            await work(group.cancel_scope)
            group.cancel_scope.cancel()

    async def start_events(
        self, scope: anyio.CancelScope, content_type: bytes, stream_id: str = "", *, anywhere: bool = False
    ) -> None:
        """Start an event stream. `scope` is cancelled when the client takes nothing for too long. `stream_id` is the id
        of a resumable one, which other gateways can continue if it is resumable `anywhere`."""
        self._watch(scope, -1)
        self.begun = True
        more = []
        if stream_id:
            gateways = b"any" if anywhere else b"one"
            more = [(b"x-stream-id", stream_id.encode()), (b"x-stream-gateways", gateways)]
        await self._start(200, [(b"content-type", content_type), *_EVENT_HEADERS], more)

    async def events(self, chunk: bytes, more: bool = True) -> None:
        """Send rendered events; the last ones with `more` false."""
        self._sending = True
        self._done = not more
        await self._send({"type": "http.response.body", "body": chunk, "more_body": more})
        self._sending = False
        self._sends += 1

    async def end(self, error: RequestError) -> None:
        """End the response with an error: as the last events of a started stream, or as the whole response."""
        if self.begun:
            error.request_id = self.request_id
            await self.events(self.conventions.errors.last_events(error), more=False)
        else:
            await self.respond_error(error)

    def _watch(self, scope: anyio.CancelScope, sends: int) -> None:
        """Check from time to time whether the client has taken nothing since the last check, which is cheaper than a
        timer for each send. A stall is detected after once to twice its time."""
        if self._sending and sends == self._sends:
            scope.cancel()
            return
        loop = asyncio.get_running_loop()
        self._watchdog = loop.call_later(self._settings.client_stall_s, self._watch, scope, self._sends)

    async def until_gone(self, scope: anyio.CancelScope | None) -> None:
        """Wait for the client to leave, then cancel `scope`, unless the client has its response."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if scope is not None and not self._done:
            scope.cancel()

    def close(self) -> None:
        """Stop watching the client."""
        if self._watchdog is not None:
            self._watchdog.cancel()


CLOSE = (b"connection", b"close")
