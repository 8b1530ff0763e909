"""Hand-over to another gateway, which takes this one's place without clients noticing."""

import asyncio
import os
import socket
from contextlib import ExitStack

import anyio
import structlog
from msgspec import Struct

from actors.actor import Ref
from actors.transport.endpoint import EndpointError, LocalEndpoint, is_of_this_user
from gateway.fleet.succession import (
    MAX_LINE_BYTES,
    InvalidStep,
    PredecessorReply,
    decode_step,
    encode_line,
    purpose_of,
)
from gateway.http.conventions import Application
from gateway.http.listener import Listener
from gateway.http.listeners import Listeners
from gateway.http.server import serve
from gateway.settings import GatewaySettings

BACKLOG = 64
RETRY_S = 1.0
"""Until connections are accepted again where the process has no descriptor left for one."""
MAX_CONNECTIONS = 8
"""Connections to the private socket, before further ones are closed."""
ASK_S = 10.0
"""Time in which a connection must have asked for the socket, or for nothing but a check."""
GIVEN_S = 15.0
"""Time in which the process that got the socket must have taken over; then it may be given to another one."""

_log = structlog.get_logger("gateway.fleet.hand_over")


class SuccessorListens(Struct, frozen=True):
    """Tells the gateway that another one accepts from its socket: it takes no more connections, and ends when nothing
    is left."""


class HandOver:
    """One gateway's side of it: a private Unix socket, in a folder of mode 0700 that is named after the port.

    Only a process of the same user can connect, and only the one that got the listening socket can make this gateway
    leave, over the same connection. No HTTP request can. The socket is given to one successor: of two that share a port
    neither would know what the other keeps for clients.
    """

    def __init__(self, listeners: Listeners, gateway: Ref[SuccessorListens], *, given_s: float = GIVEN_S) -> None:
        self._gateway = gateway
        self._listeners = listeners
        self._listener = listeners.first
        host, self._port = listeners.address
        self._unix = "" if listeners.unix is None else str(listeners.unix.path)
        self._host = "" if listeners.unix is listeners.first else host
        self._given_unix = False
        """The successor has the Unix socket, too."""
        self._given_s = given_s
        self._successor: socket.socket | None = None
        """The open connection of the process that got the listening socket last."""
        self._given_until = 0.0
        self._connections = 0
        self._left = anyio.Event()
        self._taken = anyio.Event()
        self._private: list[tuple[LocalEndpoint, Listener]] = []
        self._http: Listener | None = None
        self._http_path = ""

    async def run(self, app: Application, settings: GatewaySettings, shutdown: anyio.Event) -> None:
        """Wait for a successor, and serve what it may ask for, until `shutdown`."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._answer)
                await self._taken.wait()
                assert self._http is not None
                await serve(app, settings, shutdown=shutdown, listener=self._http)
                group.cancel_scope.cancel()
        finally:
            for end, listener in self._private:
                listener.close()
                end.remove()

    async def _answer(self) -> None:
        """Accept connections of possible successors, until one has taken over."""
        try:
            end, listener = self._listen(purpose_of(self._port))
        except (EndpointError, OSError) as error:
            _log.warning("take_over_unavailable", problem=str(error))
            return
        async with anyio.create_task_group() as group:
            group.start_soon(self._accept, listener, group)
            await self._left.wait()
            group.cancel_scope.cancel()
        # The successor has one of its own for the next one.
        listener.close()
        end.remove()

    def _listen(self, name: str) -> tuple[LocalEndpoint, Listener]:
        """Listen on a new private socket. Raises `EndpointError` when no folder can hold it, and `OSError`."""
        listener = Listener(socket.AF_UNIX)
        with ExitStack() as made:
            made.callback(listener.close)
            end = LocalEndpoint(purpose=name)
            made.callback(end.remove)
            listener.keep_as(self._listener)
            listener.setblocking(False)
            listener.bind(str(end.path))
            listener.listen(BACKLOG)
            made.pop_all()
        self._private.append((end, listener))
        return end, listener

    async def _accept(self, listener: Listener, group: anyio.abc.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                _log.error("successor_not_accepted", problem=str(error))
                await anyio.sleep(RETRY_S)
                continue
            if self._connections >= MAX_CONNECTIONS or not is_of_this_user(connection):
                connection.close()
                continue
            self._connections += 1
            connection.setblocking(False)
            group.start_soon(self._converse, connection)

    async def _converse(self, connection: socket.socket) -> None:
        """Answer one connection. A process that asks for the socket and dies must not end this gateway."""
        rest = b""
        try:
            while True:
                with anyio.move_on_after(None if self._successor is connection else ASK_S) as waited:
                    line, rest = await _read_line(connection, rest)
                if waited.cancelled_caught or not line:
                    return
                step = decode_step(line).step
                self._reply(connection, step)
                if step == "leave" and self._left.is_set():
                    return
        except (InvalidStep, OSError) as error:
            _log.warning("successor_refused", problem=str(error))
        finally:
            self._connections -= 1
            if self._successor is connection:
                self._successor = None
            connection.close()

    def _reply(self, connection: socket.socket, step: str) -> None:
        """Do what a successor asks for, and answer. Synchronous: both happen, or neither. Raises `OSError`."""
        problem = self._problem(connection, step)
        reply = PredecessorReply(os.getpid(), self._host, self._port, self._unix, problem=problem)
        if problem or step == "check":
            connection.send(encode_line(reply))  # it always has room for a line
            return
        if step == "take":
            reply = PredecessorReply(os.getpid(), self._host, self._port, self._unix, http=self._open_http())
            socket.send_fds(connection, [encode_line(reply)], [self._listener.fileno()])
            self._successor = connection
            self._given_unix = self._listeners.unix is self._listener
            self._given_until = anyio.current_time() + self._given_s
            return
        unix = self._listeners.unix
        if step == "take_unix" and unix is not None:
            socket.send_fds(connection, [encode_line(reply)], [unix.fileno()])
            self._given_unix = True
            return
        if unix is not None and self._given_unix:
            unix.file = None  # it is the successor's from now on
        self._gateway.tell(SuccessorListens(), urgent=True)
        self._left.set()
        connection.send(encode_line(reply))

    def _problem(self, connection: socket.socket, step: str) -> str:
        """Why this step is refused now; empty if it is not."""
        if step in ("leave", "take_unix"):
            if self._successor is not connection:
                return "this process has not taken the socket"
            return "there is no Unix socket" if step == "take_unix" and not self._unix else ""
        if self._listener.fileno() < 0:
            return "it is shutting down"
        if self._successor is not None and anyio.current_time() < self._given_until:
            return "another server is taking it over already"
        return ""

    def _open_http(self) -> str:
        """Raises `OSError`."""
        if self._http is None:
            try:
                end, self._http = self._listen("link")
            except EndpointError as error:
                raise OSError(str(error)) from error
            self._http_path = str(end.path)
            self._taken.set()
        return self._http_path


async def _read_line(connection: socket.socket, rest: bytes) -> tuple[bytes, bytes]:
    """The next line, empty at the end, and what was received after it. Raises `InvalidStep` and `OSError`."""
    loop = asyncio.get_running_loop()
    while (end := rest.find(b"\n", 0, MAX_LINE_BYTES + 1)) < 0:
        if len(rest) > MAX_LINE_BYTES:
            raise InvalidStep(f"a line is over the bound of {MAX_LINE_BYTES} bytes")
        part = await loop.sock_recv(connection, MAX_LINE_BYTES)
        if not part:
            return b"", b""
        rest += part
    return rest[:end], rest[end + 1 :]
