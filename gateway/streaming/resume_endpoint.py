"""`/v1/streams/{id}`: where a client whose connection ended gets the rest of its stream, or lets go of it."""

import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol
from urllib.parse import parse_qs

import anyio
import structlog
from starlette.types import Receive, Scope, Send

from gateway.errors import RefusalCode, RequestError, invalid
from gateway.http.conventions import HttpConventions
from gateway.http.exchange import HttpExchange
from gateway.settings import GatewaySettings
from gateway.streaming.resumable import Position, Reader, ResumableStreams, UnknownStream

STREAMS = "/v1/streams/"
HEADER = "Last-Event-ID"
PARAMETER = "starting_after"
_NUMBER = re.compile(r"[0-9]{1,15}")
_ID = re.compile(r"[a-z]{1,8}-[0-9a-f]{1,64}")
"""What an answer's id looks like. Anything else is nobody's, and no part of an address."""

_log = structlog.get_logger("gateway.streaming.resume_endpoint")


class Unreachable(Exception):
    """Raised by `Elsewhere` when the other gateway is gone."""


class Answer(Protocol):
    """What another gateway answers."""

    status: int

    @property
    def retry_after(self) -> str: ...

    @property
    def content_type(self) -> str: ...

    def body(self) -> AsyncIterator[bytes]:
        """As it comes. Raises `Unreachable`."""


class Elsewhere(Protocol):
    """Another gateway, whose port this one took over, and which still keeps streams."""

    def ask(self, method: str, target: str, headers: dict[str, str]) -> AbstractAsyncContextManager[Answer]:
        """Ask it. Raises `Unreachable`."""


class PickUp:
    """An ASGI app. `GET` answers with the events after `Last-Event-ID`, or after number `starting_after`, and goes on;
    with 204 when there will be no more. `DELETE` cancels the stream. A stream that is not known here may be known
    `elsewhere`."""

    METHODS = ("GET", "DELETE")

    def __init__(
        self,
        settings: GatewaySettings,
        streams: ResumableStreams,
        conventions: HttpConventions,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self.streams = streams
        self._elsewhere = elsewhere
        self._settings = settings
        self._conventions = conventions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = HttpExchange(scope, receive, send, self._settings, self._conventions)
        await self.resume(exchange, scope["path"].removeprefix(STREAMS), cancel=scope["method"] == "DELETE")

    async def resume(self, exchange: HttpExchange, stream_id: str = "", *, cancel: bool = False) -> None:
        """Answer one exchange. Without a `stream_id` the `Last-Event-ID` says which stream it is."""
        try:
            try:
                await self._serve(exchange, stream_id, cancel)
            except UnknownStream:
                if self._elsewhere is None:
                    raise
                await self._pass_on(self._elsewhere, exchange, stream_id, cancel)
        except RequestError as error:
            _log.info("resume_refused", request=exchange.request_id, status=error.status, code=error.code)
            await exchange.refuse(error)

    async def _serve(self, exchange: HttpExchange, stream_id: str, cancel: bool) -> None:
        """Raises `RequestError` before anything is sent."""
        if cancel:
            self.streams.cancel(self.streams.find(stream_id, exchange.key))
            await exchange.respond_empty()
        else:
            await self._go_on(exchange, stream_id)

    async def _go_on(self, exchange: HttpExchange, stream_id: str) -> None:
        stream_id, position = _position(exchange, stream_id)
        stream = self.streams.find(stream_id, exchange.key)
        reply = stream.reply
        # This comes first: nobody loses a stream to one that cannot go on.
        if not stream.after(position) and reply.over:
            # What tells an EventSource to come back no more.
            await exchange.respond_empty()
            return
        exchange.conventions = reply.conventions
        reader = Reader(exchange)
        missed = await self.streams.attach(stream, reader, position)

        async def go_on(scope: anyio.CancelScope) -> None:
            await exchange.start_events(scope, reply.content_type, stream_id)
            if missed:
                await exchange.events(missed, more=not reply.over)
            await reply.send(exchange, began=True)

        await self.streams.read(stream, reader, go_on)

    async def _pass_on(self, elsewhere: Elsewhere, exchange: HttpExchange, stream_id: str, cancel: bool) -> None:
        """Let the other gateway answer. Raises `RequestError` when it does not."""
        stream_id, position = (stream_id, None) if cancel else _position(exchange, stream_id)
        if not _ID.fullmatch(stream_id):
            raise UnknownStream
        # All is made anew: what a client sends may be no address at all.
        target, headers = f"{STREAMS}{stream_id}", {"x-request-id": exchange.request_id}
        if position is not None and position.field == HEADER:
            headers[HEADER] = f"{stream_id}-{position.number}"
        elif position is not None:
            target += f"?{PARAMETER}={position.number}"
        if key := exchange.header(b"authorization"):
            headers["authorization"] = key

        async def relay(scope: anyio.CancelScope) -> None:
            async with elsewhere.ask("DELETE" if cancel else "GET", target, headers) as answer:
                if answer.status == 204:
                    await exchange.respond_empty()
                elif answer.status != 200:
                    retry = [(b"retry-after", answer.retry_after.encode())] if answer.retry_after else []
                    body = b"".join([part async for part in answer.body()])
                    await exchange.respond(answer.status, body, retry)
                else:
                    await exchange.start_events(scope, answer.content_type.encode(), stream_id)
                    async for part in answer.body():
                        await exchange.events(part)
                    await exchange.events(b"", more=False)

        try:
            try:
                await exchange.attended(relay)
            except* Unreachable as gone:
                _log.info("elsewhere_gone", request=exchange.request_id, problem=str(gone.exceptions[0]))
                if not exchange.begun:
                    raise UnknownStream from None
                await exchange.end(RequestError(RefusalCode.STREAM_LOST, "the gateway that had the stream is gone"))
        finally:
            exchange.close()


def _position(exchange: HttpExchange, stream_id: str) -> tuple[str, Position]:
    """Which stream, and after which of its events. The header overrules the parameter: when an EventSource comes back,
    its address is the one it was opened with. Raises `RequestError`."""
    given = parse_qs(exchange.query, keep_blank_values=True)
    unknown = next((name for name in given if name != PARAMETER), None)
    if unknown is not None:
        raise invalid(unknown[:100], f"`{unknown[:100]}` is not a parameter of a stream", RefusalCode.UNKNOWN_PARAMETER)
    last = exchange.last_event_id
    if last:
        of, _, number = last.rpartition("-")
        if not _NUMBER.fullmatch(number) or of != (stream_id or of):
            raise invalid(HEADER, f"`{HEADER}` is not the id of an event of this stream")
        return of, Position(int(number), HEADER)
    after = given.get(PARAMETER, ["0"])
    if len(after) != 1 or not _NUMBER.fullmatch(after[0]):
        raise invalid(PARAMETER, f"`{PARAMETER}` must be the number of an event, from 0")
    return stream_id, Position(int(after[0]), PARAMETER)
