"""Ends of a link for tests, which keep what they received; a bare socket that may send a link anything."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import zmq

from actors.transport.link import HIGH_WATER, CurveKeys, Link, LinkFull
from actors.transport.message import number_frame


class End:
    """One end, with what it received."""

    def __init__(self) -> None:
        self.messages: list[list[bytes]] = []
        self.lost: list[str] = []
        self._changed = anyio.Event()
        self.link: Link

    def receive(self, frames: list[bytes]) -> None:
        self.messages.append(frames)
        self._changed.set()

    def gone(self, reason: str) -> None:
        self.lost.append(reason)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(60):
            while not condition():
                self._changed = anyio.Event()
                await self._changed.wait()


@asynccontextmanager
async def pair(
    endpoint: str, keys: tuple[CurveKeys | None, CurveKeys | None] = (None, None)
) -> AsyncIterator[list[End]]:
    here, there = End(), End()
    here.link = Link.bind(endpoint, here.receive, on_lost=here.gone, keys=keys[0])
    there.link = Link.connect(here.link.address, there.receive, on_lost=there.gone, keys=keys[1])
    try:
        yield [here, there]
    finally:
        there.link.close(0)
        here.link.close(0)


class RawPeer:
    """A bare ZeroMQ socket that numbers its messages as a link does, or sends them as they are."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self.socket = socket
        self.number = 0

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart([number_frame(self.number), *frames])
        self.number += 1


@asynccontextmanager
async def raw_peer(endpoint: str) -> AsyncIterator[tuple[End, RawPeer]]:
    """A link, and a bare ZeroMQ socket that may send it anything."""
    here = End()
    here.link = Link.bind(endpoint, here.receive, on_lost=here.gone)
    context = zmq.Context()
    peer = context.socket(zmq.PAIR)
    peer.connect(endpoint)
    try:
        yield here, RawPeer(peer)
    finally:
        peer.close(0)
        context.term()
        here.link.close(0)


def fill(link: Link) -> int:
    """Send until the link is full; the number of messages it took."""
    sent = 0
    while sent < 100 * HIGH_WATER:
        try:
            link.send_nowait([bytes(65536)])
        except LinkFull:
            break
        sent += 1
    return sent


async def settle() -> None:
    await asyncio.sleep(0)
