"""The HTTP server under the app. The only import of Hypercorn."""

import asyncio
import errno
import logging
import socket
import sys
from collections.abc import Callable

import anyio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.events import Event, Updated
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http2 import WholeBodies
from gateway.listener import Listener
from gateway.settings import GatewaySettings

BACKLOG = 4096
END_S = 1.0
"""Time that the server gets to end after its connections had theirs."""


class BindError(Exception):
    """Raised when the address cannot be listened on; the message says which and why."""


def listen(settings: GatewaySettings) -> Listener:
    """A listening socket on the address of the settings. Raises `BindError`."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = Listener(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        set_stall(listener, settings)
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            reason = f"{reason}; choose another port, or 0 for any that is free"
        raise BindError(f"cannot listen on {settings.host}:{settings.port}: {reason}") from error
    listener.setblocking(False)
    return listener


def adopt(descriptor: int, settings: GatewaySettings) -> Listener:
    """The listening socket that another gateway gave away, set as this one's settings say."""
    listener = Listener(fileno=descriptor)
    set_stall(listener, settings)
    listener.setblocking(False)
    return listener


def set_stall(listener: Listener, settings: GatewaySettings) -> None:
    """Let the kernel end connections whose client takes nothing, bytes in its buffers or not. They inherit it."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(settings.client_stall_s * 1000))


class _LastResponses:
    """Tells clients of HTTP/1.1 that come after the listener stopped to use their connection no more: the next one goes
    to whoever listens then."""

    def __init__(self, app: ASGIApp, listener: Listener) -> None:
        self._app = app
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        last = self._listener.stopped and scope["type"] == "http" and scope["http_version"] != "2"
        await self._app(scope, receive, send_last if last else send)


class _Connection(TCPServer):  # type: ignore[misc]  # Hypercorn has no types
    """Hypercorn's connection, which ends when its client leaves.

    That of 0.17 and 0.18 then waits for its idle timer, a task of the group that it is about to leave: the descriptor
    of a client that is gone stayed open for `keep_alive_s`, in CLOSE-WAIT.
    """

    left = False
    """Nothing more is read."""

    async def _read_data(self) -> None:
        await super()._read_data()
        self.left = True
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        """What Hypercorn calls with bytes to send, and with news of the connection."""
        if not (self.left and isinstance(event, Updated)):
            await super().protocol_send(event)


async def _run(app: ASGIApp, config: Config, listener: Listener, leave: anyio.Event) -> None:
    """What `hypercorn.asyncio.serve` does for one socket, with our connections; the app has no lifespan."""
    loop = asyncio.get_running_loop()
    context = WorkerContext(None)
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        await _Connection(ASGIWrapper(app), loop, config, context, {}, reader, writer)

    server = await asyncio.start_server(connected, backlog=BACKLOG, sock=listener)
    try:
        await leave.wait()
    finally:
        server.close()
        await context.terminated.set()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=config.graceful_timeout)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


async def serve(
    app: ASGIApp,
    settings: GatewaySettings,
    *,
    shutdown: anyio.Event,
    listener: Listener,
    grace_s: Callable[[], float] | None = None,
) -> None:
    """Serve `app` on `listener`, which it closes, until `shutdown` is set and the connections are done.

    They get `grace_s()` seconds then (`flush_s` unless given), asked for at that moment.
    """
    config = Config()
    config.h11_max_incomplete_size = settings.max_header_bytes
    config.keep_alive_timeout = settings.keep_alive_s
    # After so many requests Hypercorn closes an HTTP/2 connection with the responses that are under way on it.
    config.keep_alive_max_requests = sys.maxsize
    config.graceful_timeout = max(settings.flush_s, 0.1)
    config.include_server_header = False
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn.error")
    app = _LastResponses(WholeBodies(app, settings.body_timeout_s), listener)
    leave = anyio.Event()
    hard = anyio.CancelScope(shield=True)
    async with anyio.create_task_group() as group:
        group.start_soon(_leave, shutdown, leave, hard, config, grace_s)
        # A cancellation, too, is an ordinary shutdown for the connections.
        with hard:
            await _run(app, config, listener, leave)
        group.cancel_scope.cancel()


async def _leave(
    shutdown: anyio.Event,
    leave: anyio.Event,
    hard: anyio.CancelScope,
    config: Config,
    grace_s: Callable[[], float] | None,
) -> None:
    """Pass a shutdown or a cancellation on, and set the end of Hypercorn's time."""
    try:
        await shutdown.wait()
        if grace_s is not None:
            config.graceful_timeout = max(grace_s(), 0.1)
    finally:
        leave.set()
        hard.deadline = anyio.current_time() + config.graceful_timeout + END_S
