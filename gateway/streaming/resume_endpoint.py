"""`/v1/streams/{id}`: a client whose connection ended gets the rest of its stream, or cancels it."""

import re
from urllib.parse import parse_qs

import anyio
import structlog
from starlette.types import Receive, Scope, Send

from gateway.errors import RefusalCode, RequestError, invalid
from gateway.http.conventions import HttpConventions
from gateway.http.exchange import HttpExchange
from gateway.settings import GatewaySettings
from gateway.streaming.moving.event_position import EventPosition, parse_position
from gateway.streaming.moving.stream_mover import StreamElsewhere, StreamMover, StreamUnreachable
from gateway.streaming.peer import PeerGateway, PeerUnreachable
from gateway.streaming.resumable import Reader, ResumableStream, ResumableStreams, ResumePosition, UnknownStream

STREAMS = "/v1/streams/"
HEADER = "Last-Event-ID"
PARAMETER = "starting_after"
_NUMBER = re.compile(r"[0-9]{1,15}")
_ID = re.compile(r"[a-z]{1,8}[-_][0-9a-f]{1,64}")
"""The ids of answers. No other text becomes part of a URL."""

_log = structlog.get_logger("gateway.streaming.resume_endpoint")


class ResumeEndpoint:
    """An ASGI app. `GET` responds with the events after `Last-Event-ID`, or after number `starting_after`, and those
    that follow; with 204 when there are no more. `DELETE` cancels the stream. A stream that is unknown here is taken
    over by its record, or the request is forwarded to the `peer`, if there is one."""

    METHODS = ("GET", "DELETE")

    def __init__(
        self,
        settings: GatewaySettings,
        streams: ResumableStreams,
        conventions: HttpConventions,
        peer: PeerGateway | None = None,
        mover: StreamMover | None = None,
    ) -> None:
        self.streams = streams
        self.mover = mover
        """Moves streams between gateways that share records; None in one that does not."""
        self._peer = peer
        self._settings = settings
        self._conventions = conventions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = HttpExchange(scope, receive, send, self._settings, self._conventions)
        await self.respond(exchange, scope["path"].removeprefix(STREAMS), cancel=scope["method"] == "DELETE")

    async def respond(self, exchange: HttpExchange, stream_id: str = "", *, cancel: bool = False) -> None:
        """Serve one exchange. Without a `stream_id` the stream is that of `Last-Event-ID`."""
        try:
            try:
                await self._serve(exchange, stream_id, cancel, ask=self._peer is None)
            except (UnknownStream, StreamElsewhere, StreamUnreachable):
                if self._peer is None:
                    raise
                if not await self._forward(self._peer, exchange, stream_id, cancel):
                    await self._serve(exchange, stream_id, cancel, ask=True)
        except RequestError as error:
            await exchange.refuse(error)

    async def _serve(self, exchange: HttpExchange, stream_id: str, cancel: bool, *, ask: bool) -> None:
        """Respond for a stream that is here, or that no other gateway has; with `ask`, one that has it is asked for it.
        Raises `RequestError` before anything is sent."""
        if not cancel:
            stream_id, position = _position(exchange, stream_id)
        try:
            stream = self.streams.find(stream_id, exchange.key)
        except UnknownStream:
            if self.mover is None or not _ID.fullmatch(stream_id):
                raise
            if cancel:
                await self.mover.cancel(exchange, stream_id)
            else:
                await self.mover.resume(exchange, stream_id, position.at, position.field, ask=ask)
            return
        if cancel:
            self.streams.cancel(stream)
            await exchange.respond_empty()
        else:
            await self._resume(exchange, stream, position)

    async def _resume(self, exchange: HttpExchange, stream: ResumableStream, position: ResumePosition) -> None:
        reply = stream.reply
        # This comes first: no reader loses the stream to a connection that cannot resume it.
        if not stream.after(position) and reply.over:
            # An EventSource does not reconnect after a 204.
            await exchange.respond_empty()
            return
        exchange.conventions = reply.conventions
        reader = Reader(exchange)
        missed = await self.streams.attach(stream, reader, position)

        async def send(scope: anyio.CancelScope) -> None:
            anywhere = self.streams.is_anywhere(reply.id)
            await exchange.start_events(scope, reply.content_type, reply.id, anywhere=anywhere)
            if missed:
                await exchange.events(missed, more=not reply.over)
            await reply.send(exchange, began=True)

        await self.streams.read(stream, reader, send)

    async def _forward(self, peer: PeerGateway, exchange: HttpExchange, stream_id: str, cancel: bool) -> bool:
        """Let the other gateway respond. False when it does not."""
        stream_id, position = (stream_id, None) if cancel else _position(exchange, stream_id)
        if not _ID.fullmatch(stream_id):
            raise UnknownStream
        # The request is built anew: nothing that a client sent becomes part of a URL unchecked.
        target, headers = f"{STREAMS}{stream_id}", {"x-request-id": exchange.request_id}
        if position is not None and position.field == HEADER:
            headers[HEADER] = f"{stream_id}-{position.at.written()}"
        elif position is not None:
            target += f"?{PARAMETER}={position.at.number}"
        if key := exchange.header(b"authorization"):
            headers["authorization"] = key
        elif exchange.key:  # in a header of a dialect, which the other gateway may not have
            headers["authorization"] = f"Bearer {exchange.key.decode('latin-1')}"

        async def relay(scope: anyio.CancelScope) -> None:
            async with peer.ask("DELETE" if cancel else "GET", target, headers) as response:
                if response.status == 204:
                    await exchange.respond_empty()
                elif response.status != 200:
                    retry = [(b"retry-after", response.retry_after.encode())] if response.retry_after else []
                    body = b"".join([part async for part in response.body()])
                    await exchange.respond(response.status, body, retry)
                else:
                    kind = response.content_type.encode()
                    await exchange.start_events(scope, kind, stream_id, anywhere=response.anywhere)
                    async for part in response.body():
                        await exchange.events(part)
                    await exchange.events(b"", more=False)

        answered = True
        try:
            try:
                await exchange.while_connected(relay)
            except* PeerUnreachable as gone:
                _log.info("peer_unreachable", request=exchange.request_id, problem=str(gone.exceptions[0]))
                answered = exchange.begun
                if answered:
                    await exchange.end(RequestError(RefusalCode.STREAM_LOST, "the gateway that had the stream is gone"))
        finally:
            exchange.close()
        return answered


def _position(exchange: HttpExchange, stream_id: str) -> tuple[str, ResumePosition]:
    """The stream, and the event after which it is resumed. The header takes precedence over the parameter: when an
    EventSource reconnects, it uses the URL that it was opened with. Raises `RequestError`."""
    given = parse_qs(exchange.query, keep_blank_values=True)
    unknown = next((name for name in given if name != PARAMETER), None)
    if unknown is not None:
        text = f"`{unknown[:100]}` is not a parameter of a stream"
        raise invalid(unknown[:100], text, RefusalCode.UNKNOWN_PARAMETER)
    last = exchange.last_event_id
    if last:
        of, _, number = last.rpartition("-")
        position = parse_position(number)
        if position is None or of != (stream_id or of):
            raise invalid(HEADER, f"`{HEADER}` is not the id of an event of this stream")
        return of, ResumePosition(position, HEADER)
    after = given.get(PARAMETER, ["0"])
    if len(after) != 1 or not _NUMBER.fullmatch(after[0]):
        raise invalid(PARAMETER, f"`{PARAMETER}` must be the number of an event, from 0")
    return stream_id, ResumePosition(EventPosition(int(after[0])), PARAMETER)
