"""One TCP connection of a client."""

import asyncio
from contextlib import suppress
from functools import partial

from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.task_group import TaskGroup
from hypercorn.asyncio.tcp_server import MAX_RECV, TCPServer
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr
from starlette.types import ASGIApp

from gateway.http.connection.http1 import Http1
from gateway.http.connection.http2 import Http2
from gateway.http.connection.lingering import Lingering
from gateway.http.connection.negotiation import Negotiation
from gateway.http.connection.refusal import RefusalRenderer
from gateway.http.http2 import EVERY_STREAM, goaway
from gateway.http.tls import HTTP2
from gateway.settings import GatewaySettings

_Address = tuple[str, int] | None
LINGER_S = 2.0
"""Time that a client which is refused has for reading why."""


class HttpConnection(TCPServer):  # type: ignore[misc]  # Hypercorn has no types
    """Hypercorn's connection, which ends when its client leaves, and on HTTP/2 ends without resetting a stream.

    Hypercorn 0.17 and 0.18 wait for the idle timer when a client has left, so its descriptor stayed open for
    `keep_alive_s`, in CLOSE-WAIT. On HTTP/2 the preface stops that timer, and a stream that its client resets does not
    start it again, so a connection without streams would stay for ever. At the end Hypercorn resets new streams, and
    sends GOAWAY when the last response has ended but has not been sent.
    """

    def __init__(
        self,
        app: ASGIApp,
        config: Config,
        settings: GatewaySettings,
        refusals: RefusalRenderer,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ):
        self._ended = WorkerContext(None)  # of its own: connections end one by one
        super().__init__(ASGIWrapper(app), asyncio.get_running_loop(), config, self._ended, {}, reader, writer)
        self._settings = settings
        self._refusals = refusals
        self.left = False
        """Nothing more is read: the client has left."""
        self._retired = False
        self._ending = False
        self._lingering = False
        self._owes = 0
        """Requests that it serves before it ends."""
        self._last_served = EVERY_STREAM
        """Streams after this one are refused."""
        self._warned = False
        self._idle_timer: asyncio.TimerHandle | None = None
        """Ends the connection if no request arrives in time; None while there is one."""
        self._watch_timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Serve the connection until it ends."""
        try:
            client, server = self._addresses()
            async with TaskGroup(self.loop) as self._task_group:
                self.protocol = self._negotiation(client, server)
                self._set_idle(True)
                self._watch(None)
                await self._read_data()
        except OSError:
            pass  # the client has left
        finally:
            self._set_idle(False)
            if self._watch_timer is not None:
                self._watch_timer.cancel()
            if (http2 := self._http2) is not None:
                http2.stop()
            await self._close()
            # The cycles of references end here: thousands of connections would wait for the next garbage collection.
            _free(self.writer)
            self.protocol = self._task_group = None  # type: ignore[assignment]  # nothing uses it after its end

    def _addresses(self) -> tuple[_Address, _Address]:
        """Those of the client and of the server. Raises `OSError`."""
        socket = self.writer.get_extra_info("socket")
        client = parse_socket_addr(socket.family, socket.getpeername())
        return client, parse_socket_addr(socket.family, socket.getsockname())

    def _negotiation(self, client: _Address, server: _Address) -> Negotiation:
        state = ConnectionState(self.state)
        place = (self.app, self.config, self.context, self._task_group)
        encrypted = self.writer.get_extra_info("ssl_object")
        arguments = (*place, state, encrypted is not None, client, server, self.protocol_send)
        return Negotiation(
            partial(Http1, *arguments, settings=self._settings, refusals=self._refusals, write=self._write),
            partial(Http2, *arguments, settings=self._settings, refusals=self._refusals),
            self.protocol_send,
            chosen=None if encrypted is None else encrypted.selected_alpn_protocol() == HTTP2,
        )

    def _set_idle(self, idle: bool) -> None:
        """Start or stop the idle timer. (A timer takes less memory and time than the two tasks of Hypercorn's.)"""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if idle:
            ended = self._ended.terminated.is_set()
            self._idle_timer = self.loop.call_later(0 if ended else self.config.keep_alive_timeout, self._expire)

    def _expire(self) -> None:
        http2 = self._http2
        if http2 is not None and not (self._ending or self.left or self._closing):
            # A request that is on its way was not looked at, so its client may send it again (RFC 9113, 6.8).
            self._ending = True
            self.writer.write(goaway(http2.connection.highest_inbound_stream_id))
        self._task_group.spawn(self._initiate_server_close)

    def _watch(self, idle_at: int | None) -> None:
        """End an HTTP/2 connection that has no stream and had none at the last look, when it had served `idle_at`
        requests. That is after once to twice `keep_alive_s`."""
        http2 = self._http2
        requests = None if http2 is None or http2.streams else http2.keep_alive_requests
        if requests is not None and requests == idle_at:
            self._expire()
        else:
            self._watch_timer = self.loop.call_later(self.config.keep_alive_timeout, self._watch, requests)

    def retire(self, owes: int = 0, within_s: float | None = None) -> None:
        """Make its client open a new connection for the next request. An HTTP/2 client is notified while it has no
        request under way, for python-h2 (under httpx) gives up streams at a GOAWAY. One that never idles is notified
        after `keep_alive_s`; with `within_s` (see `Listener.retire`) after that time at the latest, and as soon as only
        refusals are left."""
        self._owes = owes
        if self._retired:
            return
        self._retired = True
        warn_s: float = self.config.keep_alive_timeout
        if within_s is not None:
            warn_s = min(warn_s, within_s)
            self._last_served = (
                EVERY_STREAM if self._http2 is None else self._http2.connection.highest_inbound_stream_id
            )
        self.loop.call_later(warn_s, self._warn)
        self._end_if_idle()

    async def end(self) -> None:
        """End it as soon as nothing is under way on it."""
        self.retire()
        if self._http2 is None:
            await self._ended.terminated.set()
            if self._idle_timer is not None:
                self._set_idle(True)

    @property
    def _http2(self) -> Http2 | None:
        negotiation = getattr(self, "protocol", None)  # none before it runs
        return negotiation.protocol if negotiation is not None and isinstance(negotiation.protocol, Http2) else None

    def _warn(self) -> None:
        if self._http2 is not None and not (self._warned or self._ending or self._closing):
            self._warned = True
            self.writer.write(goaway(EVERY_STREAM))

    def _end_if_idle(self) -> None:
        """End it if it is an HTTP/2 connection that has nothing left to send."""
        http2 = self._http2
        if http2 is None or self._ending or self.left or self._closing:
            return
        if http2.streams or http2.stream_buffers or http2.keep_alive_requests < self._owes:
            if http2.streams and min(http2.streams) > self._last_served:
                self._warn()
            return
        self._expire()

    @property
    def _closing(self) -> bool:
        """Nothing more can be sent."""
        return self._lingering or self.writer.is_closing()

    async def _read_data(self) -> None:
        discarded = 0
        while not self.reader.at_eof():
            try:
                data = await self.reader.read(MAX_RECV)
            except OSError:
                break
            if not self._lingering:
                await self.protocol.handle(RawData(data))
            elif (discarded := discarded + len(data)) > self._settings.max_body_bytes:
                break
        await self.protocol.handle(Closed())
        self.left = True
        self._set_idle(False)

    async def protocol_send(self, event: Event) -> None:
        """Called by Hypercorn with bytes to send and with changes of the connection."""
        if isinstance(event, RawData):  # first: a check that fails is slow, for these are abstract base classes
            await self._write(event.data)
        elif isinstance(event, Updated):
            if not (self.left or self._lingering):
                self._set_idle(event.idle)
        elif isinstance(event, Lingering):
            self._linger()
        elif isinstance(event, Closed):
            await self._close()
        if self._retired:
            self.loop.call_soon(self._end_if_idle)  # when it has noted what it has just sent

    async def _write(self, data: bytes) -> None:
        """Write at once, and then wait for room. A response that is cancelled while it waits must take no bytes with
        it: those of HTTP/2 belong to the compression state of all headers on the connection."""
        try:
            self.writer.write(data)
            await self.writer.drain()
        except (OSError, RuntimeError):  # the client has left, or was dropped, for which Linux has ETIMEDOUT
            await self.protocol.handle(Closed())

    async def _close(self) -> None:
        with suppress(OSError):  # the same, which Hypercorn takes for an error of the server
            await super()._close()

    def _linger(self) -> None:
        if self._closing:
            return
        self._lingering = True
        self._set_idle(False)
        with suppress(OSError, NotImplementedError):  # TLS has no end of one direction
            self.writer.write_eof()
        self._idle_timer = self.loop.call_later(LINGER_S, self.writer.close)


def _free(writer: asyncio.StreamWriter) -> None:
    """Let the closed transport go, which in asyncio refers to itself by the method that reads (Python 3.11 to 3.14)."""
    vars(writer.transport)["_read_ready_cb"] = None
