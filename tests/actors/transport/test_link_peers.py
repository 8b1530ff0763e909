"""The link: at which addresses, and with whom."""

import contextlib
import errno
import os
import sys

import anyio
import anyio.lowlevel
import pytest
import zmq

from actors.transport.endpoint import EndpointError
from actors.transport.link import CurveKeys, Link, LinkClosed, LinkFull
from tests.actors.transport.ends import End, pair

pytestmark = pytest.mark.anyio


async def test_tcp_on_loopback_and_with_curve_keys() -> None:
    async with pair("tcp://127.0.0.1:*") as (here, there):
        there.link.send_nowait([b"plain"])
        await here.until(lambda: here.messages == [[b"plain"]])
    (server, server_secret), (client, client_secret) = zmq.curve_keypair(), zmq.curve_keypair()
    keys = (
        CurveKeys(server.decode(), server_secret.decode(), allowed=frozenset({client.decode()})),
        CurveKeys(client.decode(), client_secret.decode(), server.decode()),
    )
    async with pair("tcp://127.0.0.1:*", keys) as (here, there):
        there.link.send_nowait([b"secret"])
        await here.until(lambda: here.messages == [[b"secret"]])


@pytest.mark.parametrize("listed", ["nobody", "another"])
async def test_a_key_that_is_not_on_the_allow_list_is_turned_away(listed: str) -> None:
    (server, server_secret), (client, client_secret) = zmq.curve_keypair(), zmq.curve_keypair()
    allowed = frozenset({zmq.curve_keypair()[0].decode()} if listed == "another" else ())
    keys = (
        CurveKeys(server.decode(), server_secret.decode(), allowed=allowed),
        CurveKeys(client.decode(), client_secret.decode(), server.decode()),
    )
    async with pair("tcp://127.0.0.1:*", keys) as (here, there):
        while not here.link.rejected:
            await anyio.lowlevel.checkpoint()
        # A socket may take a message before it learns of its rejection; the message is dropped.
        with contextlib.suppress(LinkFull, LinkClosed):
            there.link.send_nowait([b"secret"])
        there.link.close(0)
        while here.link._monitor._open:
            await anyio.lowlevel.checkpoint()
            here.link.drain_now()
        assert (here.messages, here.link.rejected, here.link.peer_key) == ([], 1, "")


async def test_of_two_on_the_allow_list_the_one_that_is_heard_is_named() -> None:
    (server, server_secret), (first, first_secret), (second, second_secret) = (zmq.curve_keypair() for _ in range(3))
    allowed = frozenset({first.decode(), second.decode()})
    ours = CurveKeys(server.decode(), server_secret.decode(), allowed=allowed)
    theirs = CurveKeys(first.decode(), first_secret.decode(), server.decode())
    async with pair("tcp://127.0.0.1:*", (ours, theirs)) as (here, there):
        while not there.link._monitor.connected:
            await anyio.lowlevel.checkpoint()
        late = End()
        keys = CurveKeys(second.decode(), second_secret.decode(), server.decode())
        late.link = Link.connect(here.link.address, late.receive, keys=keys)
        while not late.link._monitor.connected:
            await anyio.lowlevel.checkpoint()
        there.link.send_nowait([b"x"])
        await here.until(lambda: bool(here.messages))
        assert here.link.peer_key == first.decode()
        late.link.close(0)


async def test_a_public_address_needs_keys_and_an_allow_list() -> None:
    public, secret = (key.decode() for key in zmq.curve_keypair())
    with pytest.raises(EndpointError, match="leaves this machine"):
        Link.bind("tcp://0.0.0.0:*", lambda frames: None, keys=CurveKeys(public, secret))
    allowing = CurveKeys(public, secret, allowed=frozenset({public}))
    Link.bind("tcp://0.0.0.0:*", lambda frames: None, keys=allowing).close()


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("tcp://0.0.0.0:5555", "leaves this machine"),
        ("tcp://*:5555", "leaves this machine"),
        ("tcp://example.com:5555", "leaves this machine"),
        ("inproc://x", "ipc://PATH or tcp"),
        ("ipc://", "ipc://PATH or tcp"),
        ("tcp://", "ipc://PATH or tcp"),
        ("", "ipc://PATH or tcp"),
        ("ipc://" + "x" * 200, "cannot bind"),
        ("tcp://127.0.0.1:nonsense", "HOST:PORT"),
    ],
)
async def test_addresses_that_are_refused(address: str, text: str) -> None:
    with pytest.raises(EndpointError, match=text):
        Link.bind(address, lambda frames: None)


async def test_a_process_without_descriptors_is_refused_a_link(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> None:
        raise zmq.ZMQError(errno.EMFILE)

    monkeypatch.setattr(zmq.Context, "socket", none_left)
    with pytest.raises(EndpointError, match="Too many open files"):
        Link.bind(endpoint, lambda frames: None)


async def test_an_address_in_use_is_refused(endpoint: str) -> None:
    async with pair("tcp://127.0.0.1:*") as (here, _):
        with pytest.raises(EndpointError, match="in use"):
            Link.bind(here.link.address, lambda frames: None)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's word on who connected is asked on Linux alone")
async def test_the_connecting_process_is_known_before_its_first_message(endpoint: str) -> None:
    said: list[int | None] = []
    here = End()

    def receive(frames: list[bytes]) -> None:
        said.append(here.link.peer_pid)
        here.receive(frames)

    here.link = Link.bind(endpoint, receive)
    program = (
        "import asyncio, sys\n"
        "from actors.transport.link import Link\n"
        "async def main():\n"
        "    link = Link.connect(sys.argv[1], lambda frames: None)\n"
        "    await link.send([b'x'])\n"
        "    await asyncio.to_thread(sys.stdin.read)\n"
        "    link.close(5)\n"
        "asyncio.run(main())\n"
    )
    async with await anyio.open_process([sys.executable, "-c", program, here.link.address]) as child:
        await here.until(lambda: bool(said))
        assert said == [child.pid]
    here.link.close()


async def test_nobody_is_known_over_tcp() -> None:
    async with pair("tcp://127.0.0.1:*") as (here, there):
        there.link.send_nowait([b"x"])
        await here.until(lambda: here.messages == [[b"x"]])
        assert here.link.peer_pid is None


@pytest.mark.skipif(sys.platform != "linux", reason="libzmq asks for the peer's user on Linux")
async def test_another_users_process_is_turned_away(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.transport.zmq_socket.os.getuid", lambda: os.geteuid() + 1)
    here, there = End(), End()
    here.link = Link.bind(endpoint, here.receive, on_lost=here.gone)
    monkeypatch.undo()
    there.link = Link.connect(endpoint, there.receive, on_lost=there.gone)
    while not here.link.rejected:
        await anyio.lowlevel.checkpoint()
    with pytest.raises(LinkFull):
        here.link.send_nowait([b"x"])
    assert here.messages == []
    here.link.close()
    there.link.close(0)
