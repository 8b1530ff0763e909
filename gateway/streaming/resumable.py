"""Streams that outlive their client's connection, for as long as they were asked to."""

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
from gateway.metrics import Metrics
from gateway.settings import GatewaySettings
from gateway.streaming.replay_buffer import EventLog, EventsGone, EventsUnknown
from gateway.streaming.reply import Reply
from protocol.errors import ErrorCode

_log = structlog.get_logger("gateway.streaming.resumable")


class UnknownStream(RequestError):
    """Raised for the id of no stream that is kept for this client."""

    def __init__(self) -> None:
        text = "there is no such stream: it was not to be resumed, or it is too late, or it is another one's"
        super().__init__(RefusalCode.STREAM_NOT_FOUND, text, field="id")


class State(StrEnum):
    """Where a stream's client is."""

    READ = "read"
    """It reads."""
    DETACHED = "detached"
    """Its connection ended before the stream did."""
    DELIVERED = "delivered"
    """Its connection took all, and then ended; whether the client got it nobody knows."""


@dataclass(frozen=True, slots=True)
class Position:
    """After which event a client wants to go on, and the field that says so."""

    number: int
    field: str


class Reader:
    """One connection that reads a stream. Its task reads within `scope`."""

    def __init__(self, exchange: HttpExchange) -> None:
        self.exchange = exchange
        self.scope = anyio.CancelScope()
        self.gone = anyio.Event()
        """It has let go of the stream."""
        self.farewell: RequestError | None = None
        """Why the stream was taken from it."""

    def oust(self, why: RequestError) -> None:
        """Take the stream from it."""
        self.farewell = self.farewell or why
        self.scope.cancel()


class ResumableStream:
    """One of them. Only `ResumableStreams` changes it."""

    __slots__ = ("log", "owner", "reader", "reply", "resume_s", "state", "timer")

    def __init__(self, reply: Reply, log: EventLog, owner: bytes, resume_s: float, reader: Reader) -> None:
        self.reply = reply
        self.log = log
        self.owner = owner
        """The key of the client that asked for it."""
        self.resume_s = resume_s
        self.reader: Reader | None = reader
        self.state: State | None = None
        """None before it is kept and after it was let go."""
        self.timer: asyncio.TimerHandle | None = None

    def after(self, position: "Position") -> bytes:
        """The events after this one that were rendered so far. Raises `RequestError`."""
        try:
            return self.log.after(position.number)
        except EventsUnknown:
            text = f"`{position.field}`: the last event of this stream so far is number {self.log.last}"
            raise invalid(position.field, text) from None
        except EventsGone:
            text = f"the events after number {position.number} are no longer kept"
            raise RequestError(RefusalCode.EVENTS_GONE, text, field=position.field) from None


class ResumableStreams:
    """All of them, by their id. Each is let go of exactly once: after `resume_s` seconds without a reader, when its
    client says so, when it gives way to a new one, or at the end of the gateway.

    There are at most `max_resumable_streams`. A new one takes the place of the oldest that was delivered; when there is
    none, it is refused: what was promised is kept.
    """

    def __init__(self, settings: GatewaySettings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._streams: dict[str, ResumableStream] = {}
        self._counts: Counter[State] = Counter()
        self._changed = anyio.Event()
        for state in State:
            metrics.watch_streams(state, partial(self._counts.__getitem__, state))

    def check_room(self) -> None:
        """Raises `RequestError` when there is no room for one more."""
        if len(self._streams) < self._settings.max_resumable_streams:
            return
        if not self._counts[State.DELIVERED]:
            text = "no more streams can be kept for clients that come back; without `resume_s` there may be room"
            raise RequestError(ErrorCode.OVERLOADED, text, retry_after_s=self._settings.retry_after_s)

    def new_log(self) -> EventLog:
        """A log for a reply that is to be kept."""
        return EventLog(self._settings.resume_buffer_bytes)

    def keep(self, reply: Reply, log: EventLog, owner: bytes, resume_s: float, reader: Reader) -> ResumableStream:
        """Keep a new stream, whose client reads. `check_room` must have allowed it."""
        if len(self._streams) >= self._settings.max_resumable_streams:
            self._let_go(next(each for each in self._streams.values() if each.state is State.DELIVERED), "")
        stream = ResumableStream(reply, log, owner, resume_s, reader)
        self._streams[reply.id] = stream
        self._move(stream, State.READ)
        return stream

    def find(self, stream_id: str, owner: bytes) -> ResumableStream:
        """The stream of this id and owner. Raises `UnknownStream`: whether another one's exists is not said."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.owner != owner:
            raise UnknownStream
        return stream

    async def attach(self, stream: ResumableStream, reader: Reader, position: Position) -> bytes:
        """Let this connection read on, and return what it has missed. The one that reads until now loses the stream:
        mostly it is dead, and only its client knows. Raises `RequestError`."""
        while stream.reader is not None:
            stream.reader.oust(RequestError(RefusalCode.STREAM_TAKEN, "another connection picked this stream up"))
            await stream.reader.gone.wait()
        self.find(stream.reply.id, stream.owner)
        missed = stream.after(position)
        if stream.timer is not None:
            stream.timer.cancel()
        stream.reader = reader
        self._ended(stream, "resumed")
        self._move(stream, State.READ)
        _log.info("stream_resumed", request=stream.reply.call.request)
        return missed

    async def read(
        self, stream: ResumableStream, reader: Reader, work: Callable[[anyio.CancelScope], Awaitable[None]]
    ) -> None:
        """Do `work`, which sends the stream to this connection, until it ends, leaves, or loses the stream."""
        exchange = reader.exchange

        async def attended(scope: anyio.CancelScope) -> None:
            try:
                with reader.scope:
                    await work(scope)
            finally:
                self.release(stream)
            if reader.farewell is not None and not exchange.sending:
                await exchange.end(reader.farewell)

        try:
            await exchange.attended(attended)
        finally:
            exchange.close()

    def release(self, stream: ResumableStream) -> None:
        """Its connection has ended. Synchronous: may be called under cancellation. A client that was never told the
        stream's id cannot come back for it."""
        reader, stream.reader = stream.reader, None
        if reader is None:
            return
        reader.gone.set()
        if stream.state is None:
            return
        if not reader.exchange.begun:
            self._let_go(stream, "")
            return
        delivered = stream.reply.over and reader.exchange.delivered
        self._move(stream, State.DELIVERED if delivered else State.DETACHED)
        loop = asyncio.get_running_loop()
        stream.timer = loop.call_later(stream.resume_s, self._let_go, stream, "expired")

    def cancel(self, stream: ResumableStream) -> None:
        """Its client does not want it any more."""
        self._let_go(stream, "cancelled")

    def close(self) -> None:
        """Let go of all."""
        for stream in tuple(self._streams.values()):
            self._let_go(stream, "closed")

    async def settled(self) -> None:
        """Until no client reads, and none is waited for that has not got all."""
        while self._counts[State.READ] or self._counts[State.DETACHED]:
            await self._changed.wait()

    async def none_left(self) -> None:
        """Until nothing is kept."""
        while self._streams:
            await self._changed.wait()

    def _let_go(self, stream: ResumableStream, outcome: str) -> None:
        del self._streams[stream.reply.id]
        if stream.timer is not None:
            stream.timer.cancel()
        self._ended(stream, outcome)
        self._move(stream, None)
        if stream.reader is not None:
            stream.reader.oust(RequestError(RefusalCode.STREAM_CANCELLED, "the stream was cancelled"))
        stream.reply.close()

    def _ended(self, stream: ResumableStream, outcome: str) -> None:
        """Count how a detachment ended."""
        if stream.state is State.DETACHED or outcome == "resumed":
            self._metrics.detachment(stream.reply.call.model, outcome).inc()

    def _move(self, stream: ResumableStream, state: State | None) -> None:
        if stream.state is not None:
            self._counts[stream.state] -= 1
        if state is not None:
            self._counts[state] += 1
        stream.state = state
        self._changed.set()
        self._changed = anyio.Event()
