"""Where workers of other machines come in: one TCP port, and behind it a link of its own for each who is on the list.

ZeroMQ's own handshake runs from end to end, between the worker and its link; what stands here only passes bytes on, and
so can bound them, count who fails, and hang up on one peer without touching another. Each connection gets a socket in a
folder of its own, where nobody else can come, as a process of this machine does.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import anyio
import structlog
from anyio.abc import TaskGroup

from actors.join.pending_peers import StrangerLimits, Strangers, source_of
from actors.join.proxy import End
from actors.join.request import Arrival
from actors.transport.allow_list import MAX_ALLOWED, AllowList, WatchedList
from actors.transport.endpoint import EndpointError, LocalEndpoint
from actors.transport.keys import KeyPair
from actors.transport.link import CurveKeys, Link
from actors.transport.message import MAX_MESSAGE_BYTES
from actors.transport.rate_limit import PeerRate
from actors.transport.rejections import Refusal, Refusals
from protocol.codec import decode_event
from protocol.errors import ProtocolError
from protocol.events import Hello

MAX_GUESTS = MAX_ALLOWED + StrangerLimits().waiting
"""All who are on the longest list, and as many strangers as there may be."""

OnArrival = Callable[[Arrival], None]


@dataclass(frozen=True, slots=True)
class DoorLimits(StrangerLimits):
    """What may come in, and what strangers may cost."""

    guests: int = MAX_GUESTS
    """Connections in all."""
    hello_s: float = 10.0
    """Time in which a connection must have said it."""
    opening_bytes: int = 16384
    """Bytes that it may send until then: a handshake and a `Hello` are below 2 KiB."""
    unheard_bytes: int = 2 * MAX_MESSAGE_BYTES
    """Bytes that it may send afterwards without a message's having become whole: libzmq bounds the frames of one, and
    keeps as many as come."""
    revoke_s: float = 5.0
    """Between two looks at the allow-list, for those who are on it no longer."""


class Door:
    """Turns connections into arrivals. Owns the connections, also of those who were let in: a link that is closed
    ends its own."""

    def __init__(
        self,
        keys: KeyPair,
        allowed: AllowList,
        on_arrival: OnArrival,
        refusals: Refusals,
        limits: DoorLimits | None = None,
        rate: PeerRate | None = None,
    ) -> None:
        self._keys = keys
        self._allowed = WatchedList(allowed)
        self._told: Mapping[str, str] = {}
        self._on_arrival = on_arrival
        self._refusals = refusals
        self._limits = limits or DoorLimits()
        self._rate = rate or PeerRate()
        self._log = structlog.get_logger("door")
        self._strangers = Strangers(self._limits)
        self._guests: set[_Guest] = set()
        self._group: TaskGroup | None = None
        self._server: asyncio.Server | None = None
        self._shut = False

    async def run(self, listener: socket.socket) -> None:
        """Take connections until it is shut; those who are in stay until this is cancelled, which ends all."""
        loop = asyncio.get_running_loop()
        try:
            async with anyio.create_task_group() as self._group:
                server = await loop.create_server(lambda: _Guest(self), sock=listener, start_serving=False)
                self._server = server
                if self._shut:
                    server.close()
                else:
                    await server.start_serving()
                await self._revoke()
        finally:
            self.shut()
            listener.close()
            for guest in list(self._guests):
                guest.accounted = True
                guest.abort()

    def shut(self) -> None:
        """Take no more connections; those who are in stay. It is not opened again, nor at all if it was not yet."""
        self._shut = True
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _revoke(self) -> None:
        """Hang up on those whose key was taken off the list, or has another name on it now."""
        while True:
            await anyio.sleep(self._limits.revoke_s)
            allowed = self._look()
            for guest in list(self._guests):
                if guest.arrived and allowed.get(guest.key) != guest.name:
                    self._log.warning("worker_revoked", worker=guest.name, address=guest.address)
                    guest.abort()

    def came(self, guest: "_Guest") -> None:
        """A connection was made: take it, or hang up."""
        if self._group is None or len(self._guests) >= self._limits.guests:
            self.refuse(guest, Refusal.FULL, "there is no room for more connections")
            return
        if not self._strangers.admit(guest.source, asyncio.get_running_loop().time()):
            self.refuse(guest, Refusal.RATE, "too many connections")
            return
        guest.waits = True
        allowed = self._look()
        if not allowed:
            self.refuse(guest, Refusal.KEY, "nobody is on the allow-list")
            return
        self._guests.add(guest)
        keys = CurveKeys(self._keys.public, self._keys.secret, allowed=frozenset(allowed))
        self._group.start_soon(guest.enter, keys, dict(allowed), self._rate, self._limits)

    def _look(self) -> Mapping[str, str]:
        """Who may come in now: names by key. What is wrong with the list is logged when it is new."""
        listed = self._allowed.look()
        for file, problem in listed.refused.items():
            if self._told.get(file) != problem:
                self._log.error("allow_list_refused", file=file, problem=problem)
        self._told = listed.refused
        return listed.names

    def refuse(self, guest: "_Guest", why: Refusal | None, text: str) -> None:
        """Hang up; `why` is None when the fault is not the guest's."""
        guest.accounted = True
        if why is not None:
            self._refusals.count(why)
        self._log.info("connection_refused", address=guest.address, reason=text)
        guest.abort()

    def failed(self, guest: "_Guest", why: Refusal) -> None:
        """A guest came to nothing, which is counted once, or its link refuses what it sends."""
        if guest.accounted and not guest.arrived:
            return
        guest.accounted = True
        self._refusals.count(why)

    def introduce(self, guest: "_Guest", arrival: Arrival) -> None:
        """Somebody has said `Hello`."""
        self._no_stranger(guest)
        self._on_arrival(arrival)

    def gone(self, guest: "_Guest") -> None:
        self._guests.discard(guest)
        self._no_stranger(guest)

    def _no_stranger(self, guest: "_Guest") -> None:
        if guest.waits:
            guest.waits = False
            self._strangers.release(guest.source)


class _Guest(End):
    """One connection from outside, from its first byte to its last."""

    def __init__(self, door: Door) -> None:
        super().__init__(self._ended)
        self._door = door
        self._link: Link | None = None
        self._names: dict[str, str] = {}
        self._limits = DoorLimits()
        self._heard_before = 0
        self._unheard = 0
        self._deadline: asyncio.TimerHandle | None = None
        self.address = ""
        self.source = ""
        self.waits = False
        """It counts as a stranger."""
        self.arrived = False
        """It has said `Hello`: its link has another owner."""
        self.accounted = False
        """Why it ends without having arrived is known, and counted if it is to be."""
        self.key = ""

    @property
    def name(self) -> str:
        return self._names.get(self.key, "")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        host, port = transport.get_extra_info("peername", ("", 0))[:2]
        self.address, self.source = f"{host}:{port}", source_of(host)
        self._door.came(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.arrived:
            if self.received > (bound := self._limits.opening_bytes):
                self._door.refuse(self, Refusal.HANDSHAKE, f"more than {bound} bytes before its Hello")
            return
        assert self._link is not None
        if (heard := self._link.received + self._link.dropped) != self._heard_before:
            self._heard_before, self._unheard = heard, 0
        self._unheard += len(data)
        if self._unheard > (bound := self._limits.unheard_bytes):
            self._door.refuse(self, Refusal.MESSAGE, f"more than {bound} bytes, and no message among them")

    async def enter(self, keys: CurveKeys, names: dict[str, str], rate: PeerRate, limits: DoorLimits) -> None:
        """Make its link, and let its bytes reach it."""
        loop = asyncio.get_running_loop()
        self._names, self._limits = names, limits
        self._deadline = loop.call_later(limits.hello_s, self._too_late)
        try:
            with LocalEndpoint() as endpoint:
                self._link = Link.bind(
                    endpoint.address,
                    self._heard,
                    on_lost=self._lost,
                    keys=keys,
                    rate=rate,
                    on_refused=lambda why: self._door.failed(self, why),
                )
                _, inner = await loop.create_unix_connection(lambda: End(lambda: None), str(endpoint.path))
        except (EndpointError, OSError) as error:
            self._door.refuse(self, None, str(error))
            return
        if self.ended:
            inner.abort()
        else:
            self.join(inner)

    def _heard(self, frames: list[bytes]) -> None:
        """The first message is one `Hello`; what comes after it is for whoever has the link then."""
        link = self._link
        assert link is not None
        if self.arrived:
            link.close(0.0)  # it did not wait for its Welcome
            self._door.refuse(self, Refusal.FRAME, "it went on before it was welcomed")
            return
        try:
            hello = decode_event(frames[0])
        except ProtocolError as error:
            self._door.refuse(self, Refusal.FRAME, str(error))
            return
        if len(frames) != 1 or not isinstance(hello, Hello):
            self._door.refuse(self, Refusal.FRAME, "its first message was not a Hello")
            return
        self.arrived = True
        self.key = link.peer_key
        if self._deadline is not None:
            self._deadline.cancel()
        self._door.introduce(self, Arrival(self.name, self.address, hello, link))

    def _lost(self, reason: str) -> None:
        """The link has ended before anybody took it over."""
        self.close()

    def _too_late(self) -> None:
        self._door.refuse(self, Refusal.SILENT, "it did not say Hello in time")

    def _ended(self) -> None:
        if not self.arrived and not self.accounted:
            self._door.failed(self, Refusal.HANDSHAKE)  # it hung up first, or was reset before its bytes were read
        self._door.gone(self)
        if self._deadline is not None:
            self._deadline.cancel()
        if self._link is not None and not self.arrived:
            self._link.close(0.0)
