"""A join listener on a free port for tests, and peers that connect to it over real TCP."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from actors.actor import Actor
from actors.join.listener import JoinLimits, JoinListener
from actors.join.request import JoinRequest
from actors.system import ActorSystem
from actors.transport.allow_list import AllowList
from actors.transport.join_tokens import JoinTokens
from actors.transport.keys import KeyPair, make_key
from actors.transport.link import CurveKeys, Link
from actors.transport.rate_limit import PeerRate
from actors.transport.rejections import Rejections
from protocol.bounds import PROTOCOL_VERSION
from protocol.codec import decode_command, encode
from protocol.commands import Welcome
from protocol.events import Hello

HELLO = Hello(
    protocol=PROTOCOL_VERSION, worker="w", incarnation=0, pid=1, model="m", backend="b", device="d", slots=1, context=1
)

GENEROUS = JoinLimits(attempts_per_s=1000.0, attempts_at_once=1000.0, pending_each=1000)

WAIT_S = 60.0


class Entrance(Actor[JoinRequest]):
    """A join listener on a free port, and what came of it. It takes every link over, as a worker's actor would."""

    def __init__(self, folder: Path, limits: JoinLimits, rate: PeerRate | None, system: ActorSystem) -> None:
        self.server = make_key(folder / "server")
        self.worker = make_key(folder / "worker")
        self.listed = AllowList(folder)
        self.listed.add("far", self.worker.public_text)
        self.tokens = JoinTokens(folder)
        self.rejections = Rejections()
        self.requests: list[JoinRequest] = []
        self.answers: list[Callable[[JoinRequest], None]] = []
        """Functions that get the next requests instead."""
        self.received: list[list[bytes]] = []
        self.lost: list[str] = []
        recipient = system.spawn("entrance", self)
        self.join = JoinListener(self.server, self.listed, recipient, self.rejections, limits, rate, self.tokens)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.port: int = self.listener.getsockname()[1]

    def handle(self, message: JoinRequest) -> None:
        if self.answers:
            self.answers.pop(0)(message)
            return
        self.requests.append(message)
        message.link.hand_over(self.received.append, self.lost.append)
        message.link.send_nowait([encode(Welcome(1))])

    def rejected(self) -> dict[str, int]:
        return {why: count for why, count in self.rejections.total.items() if count}

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
        self.received: list[Any] = []
        self.lost: list[str] = []
        self.link = Link.connect(
            address,
            lambda frames: self.received.extend(map(decode_command, frames)),
            on_lost=self.lost.append,
            keys=keys,
        )


@asynccontextmanager
async def entrance(
    folder: Path, limits: JoinLimits = GENEROUS, rate: PeerRate | None = None
) -> AsyncIterator[Entrance]:
    async with ActorSystem() as system:
        made = Entrance(folder, limits, rate, system)
        system.start_soon(made.join.run, made.listener)
        try:
            yield made
        finally:
            for request in made.requests:
                request.link.close(0)


@asynccontextmanager
async def joined(door: Entrance, *frames: bytes) -> AsyncIterator[Client]:
    """A worker that is on the list, and says `Hello`."""
    before = len(door.requests)
    async with door.connected(door.keys()) as client:
        await client.link.send([encode(HELLO)])
        await door.until(lambda: len(door.requests) > before and bool(client.received))
        yield client
