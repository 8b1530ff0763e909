"""Hand-over to another gateway, which takes this one's place without clients noticing."""

import asyncio
import os
import socket

import anyio
import structlog
from msgspec import Struct

from actors.actor import Ref
from actors.transport.endpoint import LocalEndpoint
from gateway.http.conventions import Application
from gateway.http.listener import Listener
from gateway.http.server import serve
from gateway.settings import GatewaySettings

BACKLOG = 64
RETRY_S = 1.0
"""Until connections are accepted again where the process has no descriptor left for one."""

GIVEN_S = 15.0
"""Time in which the process that got the socket must have taken over; then it may be given to another one."""

_log = structlog.get_logger("gateway.fleet.hand_over")


class AlreadyGiven(Exception):
    """Raised while one other gateway is about to take this one's place."""


class Offer(Struct, frozen=True):
    """An offer to another gateway of the same user on the same machine: paths of two Unix sockets in folders of mode
    0700."""

    pid: int
    listener: str
    """A process that connects gets the listening socket itself, with the connections that wait in its queue: none is
    ever refused."""
    http: str
    """The gateway's interface, for what only it has: the streams that it keeps for clients which come back."""


class SuccessorListens(Struct, frozen=True):
    """Tells the gateway that another one accepts from its socket: it takes no more connections, and ends when nothing
    is left."""


class HandOver:
    """One gateway's side of it. Nothing exists before `offer`, and nothing after `run` has ended.

    The socket is given to one successor: of two that share a port neither would know what the other keeps for clients.
    """

    def __init__(self, listener: Listener, gateway: Ref[SuccessorListens], *, given_s: float = GIVEN_S) -> None:
        self._gateway = gateway
        self._listener = listener
        self._offered = anyio.Event()
        self._ends: list[LocalEndpoint] = []
        self._sockets: list[Listener] = []
        self._offer: Offer | None = None
        self._given_s = given_s
        self._given_until = 0.0

    @property
    def given(self) -> bool:
        """Another process has the socket, and is about to take over."""
        return anyio.current_time() < self._given_until

    def leave(self) -> None:
        """The successor has taken over."""
        self._gateway.tell(SuccessorListens(), urgent=True)

    def offer(self) -> Offer:
        """Raises `AlreadyGiven`; `EndpointError` when no folder can hold the sockets, and `OSError` when the system
        gives none."""
        if self.given:
            raise AlreadyGiven("another gateway is about to take this one's place")
        if self._offer is None:
            self._clear()  # what is left of an offer that failed
            self._offer = Offer(os.getpid(), self._listen(), self._listen())
            self._offered.set()
        return self._offer

    def _listen(self) -> str:
        end = LocalEndpoint()
        self._ends.append(end)
        path = str(end.path)
        listener = Listener(socket.AF_UNIX)
        self._sockets.append(listener)
        listener.keep_as(self._listener)
        listener.setblocking(False)
        listener.bind(path)
        listener.listen(BACKLOG)
        return path

    async def run(self, app: Application, settings: GatewaySettings, shutdown: anyio.Event) -> None:
        """Serve what is offered until `shutdown`; before an offer there is nothing to serve."""
        try:
            await self._offered.wait()
            giver, http = self._sockets
            async with anyio.create_task_group() as group:
                group.start_soon(self._give, giver)
                await serve(app, settings, shutdown=shutdown, listener=http)
                group.cancel_scope.cancel()
        finally:
            self._clear()

    def _clear(self) -> None:
        for each in self._sockets:
            each.close()
        for end in self._ends:
            end.remove()
        self._sockets.clear()
        self._ends.clear()

    async def _give(self, giver: Listener) -> None:
        """Give the socket to the process that connects. One that asks for it and dies must not end this gateway."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(giver)
            except OSError as error:
                _log.error("offer_not_accepted", problem=str(error))
                await anyio.sleep(RETRY_S)
                continue
            with connection:
                if self.given:
                    continue
                try:
                    # One byte, for a message of none cannot carry a descriptor; it always has room.
                    socket.send_fds(connection, [b"l"], [self._listener.fileno()])
                    self._given_until = anyio.current_time() + self._given_s
                except OSError as error:
                    _log.warning("offer_not_taken", problem=str(error))
