"""`/v1/streams/{id}`: where a client whose connection ended gets the rest of its stream, or lets go of it."""

import re

import anyio
import structlog
from starlette.types import Receive, Scope, Send

from gateway.errors import ApiError, invalid
from gateway.exchange import Exchange
from gateway.resumable import Position, Reader, ResumableStreams
from gateway.settings import GatewaySettings

STREAMS = "/v1/streams/"
HEADER = "Last-Event-ID"
PARAMETER = "starting_after"
_NUMBER = re.compile(r"[0-9]{1,15}")

_log = structlog.get_logger("gateway.pickup")


class PickUp:
    """An ASGI app. `GET` answers with the events after `Last-Event-ID`, or after number `starting_after`, and goes on;
    with 204 when there will be no more. `DELETE` cancels the stream."""

    METHODS = ("GET", "DELETE")

    def __init__(self, settings: GatewaySettings, streams: ResumableStreams) -> None:
        self.streams = streams
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, self._settings)
        await self.resume(exchange, scope["path"].removeprefix(STREAMS), cancel=scope["method"] == "DELETE")

    async def resume(self, exchange: Exchange, stream_id: str = "", *, cancel: bool = False) -> None:
        """Answer one exchange. Without a `stream_id` the `Last-Event-ID` says which stream it is."""
        try:
            if cancel:
                self.streams.cancel(self.streams.find(stream_id, exchange.key))
                await exchange.respond_empty()
            else:
                await self._go_on(exchange, stream_id)
        except ApiError as error:
            _log.info("resume_refused", request=exchange.request_id, status=error.status, code=error.code)
            await exchange.refuse(error)

    async def _go_on(self, exchange: Exchange, stream_id: str) -> None:
        stream_id, position = _position(exchange, stream_id)
        stream = self.streams.find(stream_id, exchange.key)
        reply = stream.reply
        if not stream.after(position) and reply.over:
            # What tells an EventSource to come back no more.
            await exchange.respond_empty()
            return
        reader = Reader(exchange)
        missed = await self.streams.attach(stream, reader, position)

        async def go_on(scope: anyio.CancelScope) -> None:
            await exchange.start_events(scope, stream_id)
            if missed:
                await exchange.events(missed, more=not reply.over)
            await reply.send(exchange, began=True)

        await self.streams.read(stream, reader, go_on)


def _position(exchange: Exchange, stream_id: str) -> tuple[str, Position]:
    """Which stream, and after which of its events. The header overrules the parameter: when an EventSource comes back,
    its address is the one it was opened with. Raises `ApiError`."""
    given = exchange.query
    unknown = next((name for name in given if name != PARAMETER), None)
    if unknown is not None:
        raise invalid(unknown[:100], f"`{unknown[:100]}` is not a parameter of a stream", "unknown_parameter")
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
