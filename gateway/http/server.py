"""The HTTP server under the app. It and `gateway/http/connection/` are the only imports of Hypercorn."""

import asyncio
import errno
import itertools
import logging
import socket
import sys
from collections.abc import Callable
from copy import copy
from typing import Any

import anyio
import structlog
from hypercorn.config import Config
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.connection.refusal import RefusalRenderer
from gateway.http.connection.tcp import HttpConnection
from gateway.http.conventions import Application
from gateway.http.http2 import WholeBodies
from gateway.http.listener import BACKLOG, BindError, Listener, refusal
from gateway.http.probes import ProbesOnly
from gateway.http.tls import HANDSHAKE_S, SHUTDOWN_S, Tls
from gateway.settings import GatewaySettings

_log = structlog.get_logger("gateway.http.server")

SPARE_S = 5.0
"""Time until a spare connection (see `gateway.http.listener`) on which nothing is asked is closed, or
`keep_alive_s`."""
END_S = 1.0
"""Time that the server gets to end after its connections had theirs."""


def listen(settings: GatewaySettings, tls: Tls | None = None) -> Listener:
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
    listener.tls = tls
    return listener


def adopt(descriptor: int, settings: GatewaySettings, tls: Tls | None = None) -> Listener:
    """The listening socket handed over by another gateway, with the options of these settings. Handshakes with clients
    that wait in its queue begin here."""
    listener = Listener(fileno=descriptor)
    listener.tls = tls
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


_Connect = Callable[[asyncio.StreamReader, asyncio.StreamWriter], HttpConnection]


def _connecting(
    app: Application, probes_only: ASGIApp, config: Config, listener: Listener, settings: GatewaySettings
) -> _Connect:
    """The factory of a listener's connections. Those over the bound, and all after `retire`, serve one request."""
    usual = _LastResponses(WholeBodies(app, settings.body_timeout_s), lambda: listener.retired)
    probes = _LastResponses(WholeBodies(probes_only, settings.body_timeout_s), lambda: True)
    spare_config = copy(config)
    spare_config.keep_alive_timeout = min(config.keep_alive_timeout, SPARE_S)

    refusals = RefusalRenderer(app.conventions.default.errors, app.records)

    def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> HttpConnection:
        descriptor = writer.get_extra_info("socket").fileno()
        listener.handshakes.done(descriptor)
        spare = listener.is_spare(descriptor)
        served, chosen = (probes, spare_config) if spare else (usual, config)
        connection = HttpConnection(served, chosen, settings, refusals, reader, writer)
        if spare or listener.retired:
            connection.retire(owes=1)
        return connection

    return connect


async def _run(connect: _Connect, config: Config, listener: Listener, leave: anyio.Event) -> None:
    """Do what `hypercorn.asyncio.serve` does for one socket, with `HttpConnection`, and without a lifespan."""
    connections: dict[asyncio.Task[None], HttpConnection] = {}
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
    tls = listener.tls
    encrypted: dict[str, Any] = {}
    if tls is not None:
        encrypted = {"ssl": tls.context, "ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": SHUTDOWN_S}
    server = await asyncio.start_server(connected, backlog=BACKLOG, sock=listener, **encrypted)

    def stop() -> None:
        # Not at once: asyncio drops connections that it has accepted in this turn if their server is closed before the
        # next one.
        asyncio.get_running_loop().call_soon(server.close)

    listener.on_stop = stop
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
    probes: ASGIApp | None = None,
) -> None:
    """Serve `app` on `listener`, which it closes, until `shutdown` is set and the connections are done.

    The connections then get `grace_s()` seconds (default: `flush_s`). `probes` serves those beyond `max_connections`;
    by default it is `app` for probes alone.
    """
    probes = probes or ProbesOnly(app, listener.note_refused, settings)
    listener.refusal = b"" if listener.tls is not None else refusal(app.conventions.default.errors)
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
            await _run(_connecting(app, probes, config, listener, settings), config, listener, leave)
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
