"""The HTTP server under the app. The only import of Hypercorn."""

import asyncio
import errno
import itertools
import logging
import socket
import sys
from collections.abc import Callable
from copy import copy

import anyio
import structlog
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.events import Event, Updated
from hypercorn.protocol.h2 import H2Protocol
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.conventions import Application
from gateway.http.http2 import EVERY_STREAM, WholeBodies, goaway
from gateway.http.listener import Listener, refusal
from gateway.http.probes import ProbesOnly
from gateway.settings import GatewaySettings

_log = structlog.get_logger("gateway.http.server")

BACKLOG = 4096
SPARE_S = 5.0
"""Time until a spare connection (see `gateway.http.listener`) on which nothing is asked is closed, or
`keep_alive_s`."""
END_S = 1.0
"""Time that the server gets to end after its connections had theirs."""


class BindError(Exception):
    """Raised when the address cannot be listened on; the message has the address and the reason."""


def listen(settings: GatewaySettings) -> Listener:
    """A listening socket on the address of the settings. Raises `BindError`."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = Listener(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _limit(listener, settings)
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            reason += "; choose another port (--port; 0 is any that is free), or --take-over from a Baton that has it"
        raise BindError(f"cannot listen on {settings.host}:{settings.port}: {reason}") from error
    listener.setblocking(False)
    return listener


def adopt(descriptor: int, settings: GatewaySettings) -> Listener:
    """The listening socket handed over by another gateway, with the options of these settings."""
    listener = Listener(fileno=descriptor)
    _limit(listener, settings)
    listener.setblocking(False)
    return listener


def _limit(listener: Listener, settings: GatewaySettings) -> None:
    """Bound the number of connections, and let the kernel end those whose client reads nothing, also with bytes in the
    kernel's buffers. Connections inherit these options."""
    listener.max_connections = settings.max_connections
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(settings.client_stall_s * 1000))


class _LastResponses:
    """Adds `connection: close` to HTTP/1.1 responses while `last` returns true."""

    def __init__(self, app: ASGIApp, last: Callable[[], bool]) -> None:
        self._app = app
        self._last = last

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        last = self._last() and scope["type"] == "http" and scope["http_version"] != "2"
        await self._app(scope, receive, send_last if last else send)


class _HttpConnection(TCPServer):  # type: ignore[misc]  # Hypercorn has no types
    """Hypercorn's connection, which ends when its client leaves, and on HTTP/2 ends without resetting a stream.

    Hypercorn 0.17 and 0.18 wait for the idle timer when a client has left, so its descriptor stayed open for
    `keep_alive_s`, in CLOSE-WAIT. On HTTP/2 the preface stops that timer, and a stream that its client resets does not
    start it again, so a connection without streams would stay for ever. At the end Hypercorn resets new streams, and
    sends GOAWAY when the last response has ended but has not been sent.
    """

    def __init__(self, app: ASGIApp, config: Config, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._ended = WorkerContext(None)  # of its own: connections end one by one
        super().__init__(ASGIWrapper(app), asyncio.get_running_loop(), config, self._ended, {}, reader, writer)
        self.left = False
        """Nothing more is read: the client has left."""
        self._retired = False
        self._ending = False
        self._owes = 0
        """Requests that it serves before it ends."""
        self._last_served = EVERY_STREAM
        """Streams after this one are refused."""
        self._warned = False
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        self._watch(None)
        try:
            await super().run()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _watch(self, idle_at: int | None) -> None:
        """End an HTTP/2 connection that has no stream and had none at the last look, when it had served `idle_at`
        requests. That is after once to twice `keep_alive_s`."""
        http2 = self._http2
        requests = None if http2 is None or http2.streams else http2.keep_alive_requests
        if requests is not None and requests == idle_at:
            self._task_group.spawn(self._initiate_server_close)
        else:
            self._timer = self.loop.call_later(self.config.keep_alive_timeout, self._watch, requests)

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

    @property
    def _http2(self) -> H2Protocol | None:
        wrapper = getattr(self, "protocol", None)  # none before it runs
        return wrapper.protocol if wrapper is not None and isinstance(wrapper.protocol, H2Protocol) else None

    def _warn(self) -> None:
        if self._http2 is not None and not (self._warned or self._ending or self.writer.is_closing()):
            self._warned = True
            self.writer.write(goaway(EVERY_STREAM))

    def _end_if_idle(self) -> None:
        """End it if it is an HTTP/2 connection that has nothing left to send."""
        http2 = self._http2
        if http2 is None or self._ending or self.left or self.writer.is_closing():
            return
        if http2.streams or http2.stream_buffers or http2.keep_alive_requests < self._owes:
            if http2.streams and min(http2.streams) > self._last_served:
                self._warn()
            return
        self._ending = True
        self.writer.write(goaway(http2.connection.highest_inbound_stream_id))
        self._task_group.spawn(self._initiate_server_close)

    async def _read_data(self) -> None:
        await super()._read_data()
        self.left = True
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        """Called by Hypercorn with bytes to send and with changes of the connection."""
        if not (self.left and isinstance(event, Updated)):
            await super().protocol_send(event)
        if self._retired:
            self.loop.call_soon(self._end_if_idle)  # when it has noted what it has just sent


_Connect = Callable[[asyncio.StreamReader, asyncio.StreamWriter], _HttpConnection]


def _connecting(app: Application, config: Config, listener: Listener, settings: GatewaySettings) -> _Connect:
    """The factory of a listener's connections. Those over the bound, and all after `retire`, serve one request."""
    usual = _LastResponses(WholeBodies(app, settings.body_timeout_s), lambda: listener.retired)
    only = ProbesOnly(app, listener, settings)
    probes = _LastResponses(WholeBodies(only, settings.body_timeout_s), lambda: True)
    spare_config = copy(config)
    spare_config.keep_alive_timeout = min(config.keep_alive_timeout, SPARE_S)

    def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _HttpConnection:
        spare = listener.is_spare(writer.get_extra_info("socket").fileno())
        served, chosen = (probes, spare_config) if spare else (usual, config)
        connection = _HttpConnection(served, chosen, reader, writer)
        if spare or listener.retired:
            connection.retire(owes=1)
        return connection

    return connect


async def _run(connect: _Connect, config: Config, listener: Listener, leave: anyio.Event) -> None:
    """Do what `hypercorn.asyncio.serve` does for one socket, with `_HttpConnection`, and without a lifespan."""
    connections: dict[asyncio.Task[None], _HttpConnection] = {}
    failures = itertools.count(1)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections[task] = connection = connect(reader, writer)
        task.add_done_callback(connections.pop)
        try:
            await connection
        except ExceptionGroup as error:
            # From Hypercorn alone, at unexpected frames: it logs what the app raises itself.
            count = next(failures)
            if count & (count - 1) == 0:  # 1, 2, 4, 8, ...: a flood of them is no flood of lines
                _log.warning("connection_failed", count=count, problem=repr(error.exceptions[0]))

    def retire(within_s: float | None) -> None:
        for connection in connections.values():
            connection.retire(within_s=within_s)

    listener.on_retire = retire
    server = await asyncio.start_server(connected, backlog=BACKLOG, sock=listener)
    listener.on_stop = server.close
    try:
        await leave.wait()
    finally:
        server.close()
        for connection in list(connections.values()):
            await connection.end()
        if tasks := list(connections):
            _, late = await asyncio.wait(tasks, timeout=config.graceful_timeout)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


async def serve(
    app: Application,
    settings: GatewaySettings,
    *,
    shutdown: anyio.Event,
    listener: Listener,
    grace_s: Callable[[], float] | None = None,
) -> None:
    """Serve `app` on `listener`, which it closes, until `shutdown` is set and the connections are done.

    The connections then get `grace_s()` seconds (default: `flush_s`).
    """
    listener.refusal = refusal(app.conventions.default.errors)
    config = Config()
    config.h11_max_incomplete_size = settings.max_header_bytes
    config.keep_alive_timeout = settings.keep_alive_s
    # After this many requests Hypercorn closes an HTTP/2 connection, and loses the responses under way on it.
    config.keep_alive_max_requests = sys.maxsize
    config.graceful_timeout = max(settings.flush_s, 0.1)
    config.include_server_header = False
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn.error")
    leave = anyio.Event()
    hard = anyio.CancelScope(shield=True)
    async with anyio.create_task_group() as group:
        group.start_soon(_leave, shutdown, leave, hard, config, grace_s)
        # A cancellation, too, is an ordinary shutdown for the connections.
        with hard:
            await _run(_connecting(app, config, listener, settings), config, listener, leave)
        group.cancel_scope.cancel()


async def _leave(
    shutdown: anyio.Event,
    leave: anyio.Event,
    hard: anyio.CancelScope,
    config: Config,
    grace_s: Callable[[], float] | None,
) -> None:
    """Forward a shutdown or a cancellation, and set Hypercorn's deadline."""
    try:
        await shutdown.wait()
        if grace_s is not None:
            config.graceful_timeout = max(grace_s(), 0.1)
    finally:
        leave.set()
        hard.deadline = anyio.current_time() + config.graceful_timeout + END_S
