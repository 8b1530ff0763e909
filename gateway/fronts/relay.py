"""The app of a front: it relays each request to the gateway, and the response to the client."""

import asyncio
import itertools
import time
from collections import deque

import anyio
from starlette.types import ASGIApp, Receive, Scope, Send

from actors.transport.log_limit import LogLimit
from gateway.fronts.frames import (
    BODY_WINDOW,
    PART_BYTES,
    RESPONSE_WINDOW,
    BodyPart,
    BodyTaken,
    ClientLeft,
    ExchangeEnded,
    ExchangeOpened,
    InvalidHttpRefused,
    ResponseDelivered,
    ResponsePart,
    ResponseStarted,
    ResponseTaken,
    ToGateway,
)
from gateway.fronts.outbox import FrameOutbox
from gateway.http.conventions import ConventionsByPath, HttpConventions
from gateway.http.request_record import RequestRecord, RequestRecords
from gateway.openai.errors import OpenAIErrors

ExchangeFrame = ResponsePart | ResponseStarted | ExchangeEnded | BodyTaken
SPARE = "baton.spare"
"""The key of a scope that is true for requests on spare connections."""


class RelayedRequest:
    """One request in a front: what the gateway has sent of its response, and what it has read of its body."""

    def __init__(self, number: int, outbox: FrameOutbox[ToGateway]) -> None:
        self._number = number
        self._outbox = outbox
        self._response: deque[ResponseStarted | ResponsePart | ExchangeEnded] = deque()
        self._arrival: asyncio.Future[None] | None = None
        """Set while `respond` waits. A bare future does, at a third of an `Event`'s cost."""
        self._unread = 0
        """Bytes of the body that the app has not read."""
        self._room = asyncio.Event()
        self._left = False
        self._sending = False
        """The connection has not taken what it was given."""
        self._scope = anyio.CancelScope()
        self._ended = asyncio.Event()
        """The gateway's app has ended."""

    def add(self, frame: ResponseStarted | ResponsePart | ExchangeEnded) -> None:
        """The gateway has sent a frame of the response. The end of one that is not whole comes at once where the client
        takes nothing: mostly that is why the gateway has ended it."""
        self._response.append(frame)
        self._wake()
        if isinstance(frame, ExchangeEnded):
            self._ended.set()
            if self._sending:
                self._scope.cancel()

    def read(self, count: int) -> None:
        """The app has read so many bytes more."""
        self._unread -= count
        self._room.set()

    async def forward_body(self, receive: Receive) -> None:
        """Send the body, and that the client leaves."""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self._left = True
                self._wake()
                return
            body, more = message.get("body", b""), message.get("more_body", False)
            for start in range(0, max(len(body), 1), PART_BYTES):
                part = body[start : start + PART_BYTES]
                self._unread += len(part)
                self._outbox.put(BodyPart(self._number, part, more or start + PART_BYTES < len(body)), len(part))
                while self._unread >= BODY_WINDOW:
                    self._room.clear()
                    await self._room.wait()

    async def respond(self, send: Send) -> bool:
        """Send the response. False if it could not be sent to its end."""
        with self._scope:
            return await self._respond(send)
        return False

    async def _respond(self, send: Send) -> bool:
        taken = 0
        while True:
            while not self._response:
                if self._left:
                    return False
                self._arrival = asyncio.get_running_loop().create_future()
                try:
                    await self._arrival
                finally:
                    self._arrival = None
            frame = self._response.popleft()
            if isinstance(frame, ResponsePart):
                body, more = self._joined(frame)
                if self._ended.is_set():  # it does not wait for its client either
                    self._scope.cancel()
                self._sending = True
                await send({"type": "http.response.body", "body": body, "more_body": more})
                self._sending = False
                if not more:
                    self._outbox.put(ResponseDelivered(self._number))
                    return True
                taken += len(body)
                if taken >= RESPONSE_WINDOW // 2:
                    self._outbox.put(ResponseTaken(self._number, taken))
                    taken = 0
            elif isinstance(frame, ResponseStarted):
                await send({"type": "http.response.start", "status": frame.status, "headers": frame.headers})
            else:
                return False

    async def until_ended(self) -> None:
        """Wait for the end of the gateway's app. Until then the stream of a client that has left counts: `Http2` bounds
        the number of apps that run."""
        await self._ended.wait()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _joined(self, first: ResponsePart) -> tuple[bytes, bool]:
        """The bytes of a part and of those that have arrived after it, and whether there are more."""
        if not self._response:
            return first.body, first.more
        bodies, more = [first.body], first.more
        while self._response and isinstance(part := self._response[0], ResponsePart):
            bodies.append(part.body)
            more = part.more
            self._response.popleft()
        return b"".join(bodies), more


class Relay:
    """The ASGI app."""

    def __init__(self, outbox: FrameOutbox[ToGateway]) -> None:
        self.conventions = ConventionsByPath(HttpConventions(OpenAIErrors()), {})
        """For connections and requests that do not reach the gateway: its app has these, too."""
        self.records: RequestRecords = RelayedRecords(outbox)
        self._outbox = outbox
        self._numbers = itertools.count(1)
        self._requests: dict[int, RelayedRequest] = {}

    def spare(self) -> ASGIApp:
        """The app of connections beyond `max_connections`."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await self({**scope, SPARE: True}, receive, send)

        return app

    def take(self, frame: ExchangeFrame) -> None:
        """Handle a frame. One of an exchange that has ended here has no effect."""
        found = self._requests.get(frame.exchange)
        if found is None:
            return
        if isinstance(frame, BodyTaken):
            found.read(frame.count)
        else:
            found.add(frame)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        number = next(self._numbers)
        request = self._requests[number] = RelayedRequest(number, self._outbox)
        self._outbox.put(_opened(number, scope), _head_bytes(scope))
        whole = False
        try:
            try:
                async with asyncio.TaskGroup() as group:
                    body = group.create_task(request.forward_body(receive))
                    whole = await request.respond(send)
                    body.cancel()
            finally:
                if not whole:
                    self._outbox.put(ClientLeft(number))
            if not whole:
                await request.until_ended()
        finally:
            del self._requests[number]


class RelayedRecords(RequestRecords):
    """Reports refusals to the gateway, which counts and logs those of all fronts."""

    def __init__(self, outbox: FrameOutbox[ToGateway]) -> None:
        super().__init__((), _count_nothing, LogLimit(time.monotonic))
        self._outbox = outbox

    def _noted(self, record: RequestRecord) -> None:
        code = "" if record.reason is None else record.reason.value
        self._outbox.put(InvalidHttpRefused(record.request_id, record.status or 0, code))


def _count_nothing(route: str, status: int, reason: str) -> None:
    """The gateway counts."""


def _head_bytes(scope: Scope) -> int:
    """The size of a request's head in its frame, which has the path twice."""
    target = 2 * len(scope["raw_path"]) + len(scope["query_string"])
    return target + sum(len(name) + len(value) for name, value in scope["headers"])


def _opened(number: int, scope: Scope) -> ExchangeOpened:
    return ExchangeOpened(
        number,
        scope["method"],
        scope["path"],
        scope["raw_path"],
        scope["query_string"],
        scope["headers"],
        scope["http_version"],
        scope["scheme"],
        scope["client"],
        scope["server"],
        scope.get(SPARE, False),
    )
