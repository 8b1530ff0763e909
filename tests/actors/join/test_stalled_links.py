"""Links to a peer that takes nothing: what waits at either end is bounded, and so is the time until both know."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from actors.join import proxy
from actors.join.listener import JoinLimits
from actors.transport import zmq_socket
from actors.transport.link import HIGH_WATER, Link, LinkFull
from bench.networks.byte_link import ByteLink
from protocol.codec import encode
from tests.actors.join.entrance import GENEROUS, HELLO, Client, Entrance, entrance

pytestmark = pytest.mark.anyio

MESSAGE = bytes(16 * 1024)
BUFFERED = 16 * 1024 * 1024
"""More bytes than the sockets between the two ends hold; on Linux at most 6 MiB each."""


@asynccontextmanager
async def through(folder: Path, limits: JoinLimits = GENEROUS) -> AsyncIterator[tuple[Entrance, ByteLink, Client]]:
    """A worker that has joined through a link which may be interrupted."""
    async with entrance(folder, limits) as door, ByteLink(door.port) as link:
        client = Client(f"tcp://127.0.0.1:{link.port}", door.keys())
        try:
            await client.link.send([encode(HELLO)])
            await door.until(lambda: bool(client.received))
            yield door, link, client
        finally:
            client.link.close(0)


async def fill(link: Link) -> int:
    """Send until there is no more room, and stays none. Returns the number of messages."""
    sent = refused = 0
    while refused < 20:
        try:
            link.send_nowait([MESSAGE])
            sent, refused = sent + 1, 0
        except LinkFull:
            refused += 1
            await anyio.sleep(0.01)
    return sent


@pytest.mark.parametrize("end", ["gateway", "worker"])
async def test_what_waits_for_a_stalled_link_is_bounded(end: str, tmp_path: Path) -> None:
    async with through(tmp_path) as (door, link, client):
        link.interrupt()
        sent = await fill(client.link if end == "worker" else door.requests[0].link)
        assert HIGH_WATER - 2 <= sent <= HIGH_WATER + BUFFERED // len(MESSAGE)
        assert client.lost == door.lost == []


async def test_a_link_that_is_closed_while_it_is_stalled_frees_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be kept until TCP gives up: connections are few, and each takes two threads and some descriptors."""
    monkeypatch.setattr(proxy, "CLOSE_S", 0.1)
    async with through(tmp_path, replace(GENEROUS, revoke_s=0.05)) as (door, link, _):
        link.interrupt()
        await fill(door.requests[0].link)
        door.requests[0].link.close(0)
        await door.until(lambda: not door.join._connections)


@pytest.mark.parametrize("full", [False, True], ids=["nothing waits", "the link is full"])
async def test_a_worker_learns_of_a_gateway_that_takes_nothing_by_its_own_heartbeats(
    full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zmq_socket, "HEARTBEAT_MS", 100)
    monkeypatch.setattr(zmq_socket, "HEARTBEAT_TIMEOUT_MS", 400)
    async with through(tmp_path) as (door, link, client):
        link.interrupt()
        if full:
            await fill(client.link)
        await door.until(lambda: bool(client.lost))
        assert client.lost == ["the peer's connection ended"]
