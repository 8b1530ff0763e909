"""The connection that a link watches: the one with its messages, even if other peers connect."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
import zmq

from actors.join.proxy import ProxyEnd as Splice
from actors.transport.link import CurveKeys, Link
from tests.actors.transport.ends import End
from tests.actors.transport.zmtp import HANDSHAKE, message, shake_hands

pytestmark = pytest.mark.anyio

OTHER_PEER = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
print(flush=True)
received = b""
for line in sys.stdin:
    connection.sendall(bytes.fromhex(line))
    while b"READY" not in received:
        received += connection.recv(4096)
"""
"""Connects at once. For each line of stdin it sends the bytes and completes the handshake."""


def bound(address: str, keys: CurveKeys | None = None) -> End:
    here = End()
    here.link = Link.bind(address, here.receive, on_lost=here.gone, keys=keys)
    return here


def dial(endpoint: str) -> socket.socket:
    """A connection of this process that says nothing yet."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(endpoint.removeprefix("ipc://"))
    return connection


@asynccontextmanager
async def other_peer(endpoint: str) -> AsyncIterator[anyio.abc.Process]:
    """Another process that has connected."""
    path = endpoint.removeprefix("ipc://")
    async with await anyio.open_process([sys.executable, "-c", OTHER_PEER, path]) as process:
        assert process.stdout is not None
        await process.stdout.receive()
        yield process
        assert process.stdin is not None
        await process.stdin.aclose()
        await process.wait()


async def until_refused(here: End, times: int) -> None:
    with anyio.fail_after(60):
        while here.link.rejected < times:  # noqa: ASYNC110  libzmq tells later
            await anyio.sleep(0.002)


async def until_ready(here: End) -> None:
    with anyio.fail_after(60):
        while not here.link._monitor.connected:  # noqa: ASYNC110  libzmq tells later
            await anyio.sleep(0.002)


linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's word on who connected is asked on Linux alone")


@linux
async def test_who_connects_during_the_handshake_is_not_taken_for_the_worker(endpoint: str) -> None:
    here, worker = bound(endpoint), dial(endpoint)
    async with other_peer(endpoint):
        await shake_hands(worker)
        worker.sendall(message(0, b"hello"))
        await here.until(lambda: bool(here.messages))
        assert here.link.peer_pid == os.getpid()
    await until_refused(here, 1)
    worker.sendall(message(1, b"still here"))
    await here.until(lambda: len(here.messages) == 2)
    assert here.lost == []
    worker.close()
    await here.until(lambda: bool(here.lost))
    assert here.lost == ["the peer's connection ended"]
    here.link.close(0)


@linux
async def test_who_speaks_before_the_worker_does_is_known_by_its_own_process(endpoint: str) -> None:
    here = bound(endpoint)
    async with other_peer(endpoint) as process:
        with dial(endpoint):  # the worker, which connected last
            assert process.stdin is not None
            await process.stdin.send(f"{HANDSHAKE.hex()}\n{message(0, b'hello').hex()}\n".encode())
            await here.until(lambda: bool(here.messages))
            assert here.link.peer_pid == process.pid
    await here.until(lambda: bool(here.lost))
    here.link.close(0)


async def test_of_two_that_leave_unheard_the_last_is_the_loss(endpoint: str) -> None:
    here, worker, other = bound(endpoint), dial(endpoint), dial(endpoint)
    await shake_hands(worker)
    await until_ready(here)
    worker.close()
    await until_refused(here, 1)
    assert here.lost == []
    other.close()
    await here.until(lambda: bool(here.lost))
    assert here.link.rejected == 1
    here.link.close(0)


async def test_what_was_said_before_an_end_that_nobody_could_place_is_heard_and_then_the_loss(endpoint: str) -> None:
    here, worker, other = bound(endpoint), dial(endpoint), dial(endpoint)
    await shake_hands(worker)
    await until_ready(here)
    worker.sendall(message(0, b"last words"))
    worker.close()
    while not here.link.rejected:  # the loop does not turn: nothing is received yet
        here.link._on_monitor()
    assert here.messages == []
    await here.until(lambda: bool(here.lost))
    assert (here.messages, here.lost) == ([[b"last words"]], ["the peer's connection ended"])
    other.close()
    here.link.close(0)


@linux
async def test_where_libzmq_does_not_tell_and_two_may_be_it_nobody_is(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def untold(*_: object) -> int:
        raise zmq.ZMQError(22)

    monkeypatch.setattr("actors.transport.monitor.zmq.Frame.get", untold)
    here, worker, other = bound(endpoint), dial(endpoint), dial(endpoint)
    await shake_hands(worker)
    worker.sendall(message(0, b"hello"))
    await here.until(lambda: bool(here.lost))
    assert (here.messages, here.link.peer_pid) == ([[b"hello"]], 0)
    worker.close()
    other.close()
    here.link.close(0)


class Held(Splice):
    """One half of a connection through this process, which carries nothing until it is joined."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.made = anyio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.made.set()


def keys() -> tuple[CurveKeys, CurveKeys]:
    (server, server_secret), (client, client_secret) = zmq.curve_keypair(), zmq.curve_keypair()
    return (
        CurveKeys(server.decode(), server_secret.decode(), allowed=frozenset({client.decode()})),
        CurveKeys(client.decode(), client_secret.decode(), server.decode()),
    )


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "curve"])
@pytest.mark.parametrize("transport", ["ipc", "tcp"])
async def test_on_every_transport(endpoint: str, transport: str, secured: bool) -> None:
    """Another peer connects after the worker and before it is ready, and disconnects."""
    ours, theirs = keys() if secured else (None, None)
    here = bound(endpoint if transport == "ipc" else "tcp://127.0.0.1:*", ours)
    loop = asyncio.get_running_loop()
    path = here.link.address.removeprefix("ipc://")
    host, _, port = here.link.address.removeprefix("tcp://").partition(":")
    outer = Held()
    if transport == "ipc":
        _, inner = await loop.create_unix_connection(Held, path)
        other = dial(endpoint)
    else:
        _, inner = await loop.create_connection(Held, host, int(port))
        other = socket.create_connection((host, int(port)))
    async with await loop.create_server(lambda: outer, "127.0.0.1", 0) as server:
        there = End()
        address = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        there.link = Link.connect(address, there.receive, on_lost=there.gone, keys=theirs)
        await outer.made.wait()
        outer.join(inner)
        await there.link.send([b"one"])
        await here.until(lambda: bool(here.messages))
        other.close()
        await until_refused(here, 1)
        await there.link.send([b"two"])
        await here.until(lambda: here.messages == [[b"one"], [b"two"]])
        assert here.lost == []
        assert here.link.peer_pid == (os.getpid() if transport == "ipc" and sys.platform == "linux" else None)
        there.link.close(0)
        await here.until(lambda: bool(here.lost))
    here.link.close(0)
