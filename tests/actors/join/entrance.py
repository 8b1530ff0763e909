"""A door on a free port for tests, and those who come to it over real TCP."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from actors.join.address import listen_at
from actors.join.listener import Door, DoorLimits
from actors.join.request import Arrival
from actors.transport.allow_list import AllowList
from actors.transport.keys import KeyPair, make_key
from actors.transport.link import CurveKeys, Link
from actors.transport.rate_limit import PeerRate
from actors.transport.rejections import Refusals
from protocol.bounds import PROTOCOL_VERSION
from protocol.codec import decode_command, encode
from protocol.commands import Welcome
from protocol.events import Hello

HELLO = Hello(
    protocol=PROTOCOL_VERSION, worker="w", incarnation=0, pid=1, model="m", backend="b", device="d", slots=1, context=1
)

GENEROUS = DoorLimits(attempts_per_s=1000.0, attempts_at_once=1000.0, waiting_each=1000)

WAIT_S = 60.0


class Entrance:
    """A door on a free port, and what came of it."""

    def __init__(self, folder: Path, limits: DoorLimits, rate: PeerRate | None) -> None:
        self.server = make_key(folder / "server")
        self.worker = make_key(folder / "worker")
        self.listed = AllowList(folder)
        self.listed.add("far", self.worker.public_text)
        self.refusals = Refusals()
        self.arrivals: list[Arrival] = []
        self.heard: list[list[bytes]] = []
        self.lost: list[str] = []
        self.door = Door(self.server, self.listed, self.came, self.refusals, limits, rate)
        self.listener = listen_at("127.0.0.1", 0)
        self.port: int = self.listener.getsockname()[1]

    def came(self, arrival: Arrival) -> None:
        """Take it over, as a supervisor would."""
        self.arrivals.append(arrival)
        arrival.link.hand_over(self.heard.append, self.lost.append)
        arrival.link.send_nowait([encode(Welcome(1))])

    def refused(self) -> dict[str, int]:
        return {why: count for why, count in self.refusals.total.items() if count}

    async def until(self, true: Callable[[], bool]) -> None:
        with anyio.fail_after(WAIT_S):
            while not true():  # noqa: ASYNC110  sockets are waited for
                await anyio.sleep(0.002)

    def keys(self, own: KeyPair | None = None, server: str = "") -> CurveKeys:
        mine = own or self.worker
        return CurveKeys(mine.public, mine.secret, server=server or self.server.public)

    @asynccontextmanager
    async def connected(self, keys: CurveKeys | None) -> AsyncIterator["Client"]:
        client = Client(f"tcp://127.0.0.1:{self.port}", keys)
        try:
            yield client
        finally:
            client.link.close(0)

    def dial(self, source: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), source_address=(source, 0))


class Client:
    """A worker's end."""

    def __init__(self, address: str, keys: CurveKeys | None) -> None:
        self.heard: list[Any] = []
        self.lost: list[str] = []
        self.link = Link.connect(
            address, lambda frames: self.heard.extend(map(decode_command, frames)), on_lost=self.lost.append, keys=keys
        )


@asynccontextmanager
async def entrance(
    folder: Path, limits: DoorLimits = GENEROUS, rate: PeerRate | None = None
) -> AsyncIterator[Entrance]:
    made = Entrance(folder, limits, rate)
    async with anyio.create_task_group() as group:
        group.start_soon(made.door.run, made.listener)
        try:
            yield made
        finally:
            for arrival in made.arrivals:
                arrival.link.close(0)
            group.cancel_scope.cancel()


@asynccontextmanager
async def guest(door: Entrance, *frames: bytes) -> AsyncIterator[Client]:
    """One who is on the list, and says `Hello`."""
    before = len(door.arrivals)
    async with door.connected(door.keys()) as client:
        await client.link.send([encode(HELLO)])
        await door.until(lambda: len(door.arrivals) > before and bool(client.heard))
        yield client
