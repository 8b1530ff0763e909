"""Streams that are kept for a time after their client's connection has ended."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import anyio
import structlog

from gateway.errors import RefusalCode, RequestError, invalid
from gateway.http.exchange import HttpExchange
from gateway.metrics.metrics import Metrics
from gateway.settings import GatewaySettings
from gateway.streaming.moving.event_position import EventPosition
from gateway.streaming.moving.record_store import RecordStore, StreamDemand
from gateway.streaming.replay_buffer import EventLog, EventsGone, EventsUnknown
from gateway.streaming.reply import StreamedReply
from protocol.errors import ErrorCode

MAX_DROPPED = 4096
"""Streams that gave way, and are remembered so that their clients learn it."""

_log = structlog.get_logger("gateway.streaming.resumable")


class UnknownStream(RequestError):
    """Raised when no stream of this id is kept for this client."""

    def __init__(self) -> None:
        text = "there is no such stream: it was not to be resumed, or it is too late, or it is another one's"
        super().__init__(RefusalCode.STREAM_NOT_FOUND, text, field="id")


class StreamDropped(RequestError):
    """Raised when a stream of this client had to give way to newer ones."""

    def __init__(self) -> None:
        text = "the stream was dropped, as too many newer ones were to be kept: send the request again"
        super().__init__(RefusalCode.STREAM_DROPPED, text, field="id")


class StreamState(StrEnum):
    """State of a stream's client."""

    READ = "read"
    """A connection reads it."""
    DETACHED = "detached"
    """Its connection ended before the stream did."""
    DELIVERED = "delivered"
    """Its connection took all events, and then ended; whether the client has them is unknown."""


@dataclass(frozen=True, slots=True)
class ResumePosition:
    """The event after which a client resumes, and the request field that has it."""

    at: EventPosition
    field: str


class Reader:
    """One connection that reads a stream. Its task reads within `scope`."""

    def __init__(self, exchange: HttpExchange) -> None:
        self.exchange = exchange
        self.scope = anyio.CancelScope()
        self.gone = anyio.Event()
        """It reads no more."""
        self.eviction: RequestError | None = None
        """Why the stream was taken from it."""

    def evict(self, why: RequestError) -> None:
        """Take the stream from it."""
        self.eviction = self.eviction or why
        self.scope.cancel()


class ResumableStream:
    """One stream that is kept. Only `ResumableStreams` changes it."""

    __slots__ = ("client", "known", "log", "owner", "reader", "reply", "resume_s", "state", "timer")

    def __init__(
        self, reply: StreamedReply, log: EventLog, resume_s: float, reader: Reader, *, known: bool = False
    ) -> None:
        self.reply = reply
        self.known = known
        """Its client knows its id before it gets any event."""
        self.log = log
        self.owner = reader.exchange.key
        """The API key of the client that asked for it."""
        self.client = reader.exchange.client
        """The name of that client; empty on a server without keys."""
        self.resume_s = resume_s
        self.reader: Reader | None = reader
        self.state: StreamState | None = None
        """None before it is kept and after it was dropped."""
        self.timer: asyncio.TimerHandle | None = None

    def after(self, position: "ResumePosition") -> bytes:
        """The events after this position that were rendered so far. Raises `RequestError`."""
        try:
            return self.log.after(position.at.number)
        except EventsUnknown:
            text = f"`{position.field}`: the last event of this stream so far is number {self.log.last}"
            raise invalid(position.field, text) from None
        except EventsGone:
            text = f"the events after number {position.at.number} are no longer kept"
            raise RequestError(RefusalCode.EVENTS_GONE, text, field=position.field) from None


class ResumableStreams:
    """The kept streams by their ids. Each is dropped exactly once: after `resume_s` seconds without a reader, when its
    client cancels it, when a new one replaces it, or at the end of the gateway.

    There are at most `max_resumable_streams`, and `max_resumable_streams_per_key` of one client. Beyond that a stream
    gives way that no connection reads: of the same client if its share is full; else the oldest that was delivered,
    or else the oldest of the client that has the most. A new stream is refused if all of those are being read.
    """

    def __init__(self, settings: GatewaySettings, metrics: Metrics, records: RecordStore | None = None) -> None:
        """`records` of the streams, by which other gateways continue them."""
        self._settings = settings
        self._metrics = metrics
        self._records = records
        if records is not None:
            records.use(self.demand)
        self._streams: dict[str, ResumableStream] = {}
        """Ordered by the time at which they were begun or lost their last connection."""
        self._dropped: dict[str, bytes] = {}
        """The owners of the last streams that gave way."""
        self._counts: Counter[StreamState] = Counter()
        self._changed = anyio.Event()
        for state in StreamState:
            metrics.watch_streams(state, partial(self._counts.__getitem__, state))

    def check_room(self, client: str) -> None:
        """Raise `RequestError` when one more stream of this client cannot be kept."""
        self._giving_way(client)

    def _giving_way(self, client: str) -> ResumableStream | None:
        """The stream that gives way to a new one of this client; None while there is room. Raises `RequestError`."""
        settings, streams = self._settings, self._streams.values()
        counts = Counter(stream.client for stream in streams)
        if client and counts[client] >= settings.max_resumable_streams_per_key:
            name, asked = "max_resumable_streams_per_key", [stream for stream in streams if stream.client == client]
        elif len(streams) >= settings.max_resumable_streams:
            name, asked = "max_resumable_streams", list(streams)
        else:
            return None
        delivered = [stream for stream in asked if stream.state is StreamState.DELIVERED]
        detached = [stream for stream in asked if stream.state is StreamState.DETACHED]
        if delivered or detached:
            # The first one of those that are equal, which is the oldest.
            return delivered[0] if delivered else max(detached, key=lambda stream: counts[stream.client])
        text = f"no more streams can be kept for clients that come back ({name}); without `resume_s` there may be room"
        raise RequestError(ErrorCode.OVERLOADED, text, retry_after_s=settings.retry_after_s)

    def new_log(self, last: int = 0) -> EventLog:
        """Make a log for a reply that is to be kept, whose client has had events up to number `last`."""
        return EventLog(self._settings.resume_buffer_bytes, last)

    def keep(
        self, reply: StreamedReply, log: EventLog, resume_s: float, reader: Reader, *, known: bool = False
    ) -> ResumableStream:
        """Keep a new stream, which `reader` reads, and whose client may know its id already. `check_room` must have
        allowed it."""
        stream = ResumableStream(reply, log, resume_s, reader, known=known)
        if (old := self._giving_way(stream.client)) is not None:
            self._drop(old, "dropped")
            self._dropped[old.reply.id] = old.owner
            if len(self._dropped) > MAX_DROPPED:
                del self._dropped[next(iter(self._dropped))]
            _log.info("stream_dropped", request=old.reply.group.request_id)
        self._streams[reply.id] = stream
        self._move(stream, StreamState.READ)
        return stream

    def find(self, stream_id: str, owner: bytes) -> ResumableStream:
        """The stream of this id and owner. Raises `StreamDropped`, and `UnknownStream`, whether or not another owner
        has such a stream."""
        stream = self._streams.get(stream_id)
        if stream is not None and stream.owner == owner:
            return stream
        if self._dropped.get(stream_id) == owner:
            raise StreamDropped
        raise UnknownStream

    async def attach(self, stream: ResumableStream, reader: Reader, position: ResumePosition) -> bytes:
        """Make this connection the reader, and return the events that it has missed. The present reader is evicted:
        mostly its connection is dead, and only the client knows. Raises `RequestError`."""
        while stream.reader is not None:
            stream.reader.evict(RequestError(RefusalCode.STREAM_TAKEN, "another connection picked this stream up"))
            await stream.reader.gone.wait()
        self.find(stream.reply.id, stream.owner)
        missed = stream.after(position)
        if stream.timer is not None:
            stream.timer.cancel()
        stream.reader = reader
        self._ended(stream, "resumed")
        self._move(stream, StreamState.READ)
        _log.info("stream_resumed", request=stream.reply.group.request_id)
        return missed

    async def read(
        self, stream: ResumableStream, reader: Reader, work: Callable[[anyio.CancelScope], Awaitable[None]]
    ) -> None:
        """Run `work`, which sends the stream to this connection, until it ends, or the client leaves, or the reader is
        evicted."""
        exchange = reader.exchange

        async def while_connected(scope: anyio.CancelScope) -> None:
            try:
                with reader.scope:
                    await work(scope)
            finally:
                self.release(stream)
            if reader.eviction is not None and not exchange.sending:
                await exchange.end(reader.eviction)

        try:
            await exchange.while_connected(while_connected)
        finally:
            exchange.close()

    def release(self, stream: ResumableStream) -> None:
        """Detach the reader, whose connection has ended. Synchronous: may be called under cancellation. A stream whose
        id was never sent is dropped, as its client cannot resume it."""
        reader, stream.reader = stream.reader, None
        if reader is None:
            return
        reader.gone.set()
        if stream.state is None:
            return
        if not (reader.exchange.begun or stream.known):
            self._drop(stream, "")
            return
        self._streams[stream.reply.id] = self._streams.pop(stream.reply.id)
        delivered = stream.reply.over and reader.exchange.delivered
        self._move(stream, StreamState.DELIVERED if delivered else StreamState.DETACHED)
        loop = asyncio.get_running_loop()
        stream.timer = loop.call_later(stream.resume_s, self._drop, stream, "expired")

    def cancel(self, stream: ResumableStream) -> None:
        """Drop a stream, as its client asks."""
        self._drop(stream, "cancelled")

    def demand(self, stream_id: str, demand: StreamDemand) -> None:
        """Do what a client of another gateway has asked for."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if demand is StreamDemand.CANCEL:
            self._drop(stream, "cancelled")
            return
        # Released after it was dropped: two gateways need not compute it.
        self._drop(stream, "moved", RequestError(RefusalCode.STREAM_TAKEN, "another gateway continues the stream"))
        if demand is StreamDemand.MOVE and self._records is not None:
            self._records.release(stream_id)

    def is_anywhere(self, stream_id: str) -> bool:
        """Other gateways can continue this stream."""
        return self._records is not None and self._records.has(stream_id)

    def leave(self) -> None:
        """Leave all streams that other gateways can continue to them, if their clients know the ids. Their connections
        end without a last event, so that clients come back."""
        for stream in tuple(self._streams.values()):
            known = stream.known or stream.reader is None or stream.reader.exchange.begun
            if self._records is not None and known and self.is_anywhere(stream.reply.id):
                self._drop(stream, "moved", leaves=True)
                self._records.release(stream.reply.id)

    def close(self) -> None:
        """Drop all streams."""
        for stream in tuple(self._streams.values()):
            self._drop(stream, "closed")

    async def settled(self) -> None:
        """Wait until every stream was delivered or dropped."""
        while self._counts[StreamState.READ] or self._counts[StreamState.DETACHED]:
            await self._changed.wait()

    async def none_left(self) -> None:
        """Wait until no stream is kept."""
        while self._streams:
            await self._changed.wait()

    def _drop(
        self, stream: ResumableStream, outcome: str, eviction: RequestError | None = None, *, leaves: bool = False
    ) -> None:
        """Drop a stream. `eviction` is what its reader gets, by default that it was cancelled; with `leaves` the
        connection ends."""
        del self._streams[stream.reply.id]
        if self._records is not None and outcome != "moved":
            self._records.forget(stream.reply.id)
        if stream.timer is not None:
            stream.timer.cancel()
        self._ended(stream, outcome)
        self._move(stream, None)
        if stream.reader is not None and leaves:
            stream.reader.scope.cancel()
        elif stream.reader is not None:
            stream.reader.evict(eviction or RequestError(RefusalCode.STREAM_CANCELLED, "the stream was cancelled"))
        stream.reply.close()

    def _ended(self, stream: ResumableStream, outcome: str) -> None:
        """Count how a detachment ended."""
        if stream.state is StreamState.DETACHED or outcome == "resumed":
            self._metrics.detachment(stream.reply.group.model, outcome).inc()

    def _move(self, stream: ResumableStream, state: StreamState | None) -> None:
        if stream.state is not None:
            self._counts[stream.state] -= 1
        if state is not None:
            self._counts[state] += 1
        stream.state = state
        self._changed.set()
        self._changed = anyio.Event()
