"""The link: round trips, bounds at their edges, garbage, overflow, and every way a peer goes away."""

import asyncio
import contextlib
import errno
import itertools
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest
import zmq

from actors.endpoint import EndpointError, LocalEndpoint
from actors.link import DRAIN_BATCH, HIGH_WATER, CurveKeys, Link, LinkClosed, LinkFull, MessageRefused
from actors.numbering import NUMBER_BYTES, number_frame
from protocol.bounds import MAX_FRAME_BYTES, MAX_FRAMES_PER_MESSAGE
from tests.actors.ends import End

DESCRIPTORS = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"

pytestmark = pytest.mark.anyio


@pytest.fixture
def endpoint() -> Iterator[str]:
    with LocalEndpoint() as local:
        yield local.address


@asynccontextmanager
async def pair(
    endpoint: str, keys: tuple[CurveKeys | None, CurveKeys | None] = (None, None)
) -> AsyncIterator[list[End]]:
    here, there = End(), End()
    here.link = Link.bind(endpoint, here.heard, on_lost=here.gone, keys=keys[0])
    there.link = Link.connect(here.link.address, there.heard, on_lost=there.gone, keys=keys[1])
    try:
        yield [here, there]
    finally:
        there.link.close(0)
        here.link.close(0)


class RawPeer:
    """A bare ZeroMQ socket that numbers its messages as a link does, unless told to send them as they are."""

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
    here.link = Link.bind(endpoint, here.heard, on_lost=here.gone)
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


async def test_messages_arrive_whole_and_in_order_both_ways(endpoint: str) -> None:
    async with pair(endpoint) as (here, there):
        sent = [[b"%d" % number, b"", b"x" * number] for number in range(300)]
        for message in sent:
            there.link.send_nowait(message)
        await here.until(lambda: len(here.messages) == 300)
        assert here.messages == sent
        here.link.send_nowait([b"back"])
        await there.until(lambda: there.messages == [[b"back"]])
        assert (here.link.received, there.link.sent, here.link.dropped) == (300, 300, 0)


async def test_a_reply_sent_inside_the_callback_is_not_lost(endpoint: str) -> None:
    async with pair(endpoint) as (here, there):

        def echo(frames: list[bytes]) -> None:
            there.link.send_nowait(frames)

        there.link._on_message = echo
        there.link.send_nowait([b"open"])
        await here.until(lambda: len(here.messages) == 1)
        for number in range(500):
            here.link.send_nowait([b"%d" % number])
        await here.until(lambda: len(here.messages) == 501)


async def test_a_callback_that_raises_does_not_stop_the_link(endpoint: str) -> None:
    raised: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context["exception"]))
    async with pair(endpoint) as (here, there):

        def fragile(frames: list[bytes]) -> None:
            here.heard(frames)
            if frames == [b"bad"]:
                raise LookupError("in the callback")

        here.link._on_message = fragile
        for frame in (b"bad", b"good"):
            there.link.send_nowait([frame])
        await here.until(lambda: len(here.messages) == 2)
    assert [type(error) for error in raised] == [LookupError]


async def test_a_flood_lets_the_loop_turn(endpoint: str) -> None:
    async with pair(endpoint) as (here, there):
        turns: list[int] = []

        def turn() -> None:
            turns.append(len(here.messages))
            if len(here.messages) < 500:
                asyncio.get_running_loop().call_soon(turn)

        for number in range(500):
            there.link.send_nowait([b"%d" % number])
        turn()
        await here.until(lambda: len(here.messages) == 500)
        await settle()
        assert max(b - a for a, b in itertools.pairwise(turns)) <= 2 * DRAIN_BATCH


async def test_bounds_of_a_message_on_the_sender(endpoint: str) -> None:
    async with pair(endpoint) as (here, there):
        there.link.send_nowait([b"x"] * MAX_FRAMES_PER_MESSAGE)
        there.link.send_nowait([bytes(MAX_FRAME_BYTES)])
        for frames, text in (
            ([], "not 0"),
            ([b""] * (MAX_FRAMES_PER_MESSAGE + 1), "1025"),
            ([bytes(MAX_FRAME_BYTES + 1)], "over the bound"),
            ([bytes(MAX_FRAME_BYTES)] * 4 + [b"x"], "a message of"),
        ):
            with pytest.raises(MessageRefused, match=text):
                there.link.send_nowait(frames)
        await here.until(lambda: len(here.messages) == 2)
        assert [len(message) for message in here.messages] == [MAX_FRAMES_PER_MESSAGE, 1]


async def test_too_many_frames_from_a_raw_peer_are_dropped_and_counted(endpoint: str) -> None:
    async with raw_peer(endpoint) as (here, peer):
        peer.send(*[b"x"] * (MAX_FRAMES_PER_MESSAGE + 1))
        peer.send(b"fine")
        await here.until(lambda: bool(here.messages))
        assert here.messages == [[b"fine"]]
        assert here.link.dropped == 1


async def test_a_message_that_is_missing_loses_the_link_before_the_next_is_heard(endpoint: str) -> None:
    async with raw_peer(endpoint) as (here, peer):
        peer.send(b"first")
        peer.number += 1
        peer.send(b"third")
        peer.send(b"fourth")
        await here.until(lambda: bool(here.lost))
        assert here.messages == [[b"first"]]
        assert here.lost == ["message 2 came where 1 was due: what was between them is lost"]
        with pytest.raises(LinkClosed):
            here.link.send_nowait([b"x"])


@pytest.mark.parametrize("size", [NUMBER_BYTES - 1, NUMBER_BYTES + 1])
async def test_a_message_without_a_number_loses_the_link(endpoint: str, size: int) -> None:
    async with raw_peer(endpoint) as (here, peer):
        peer.socket.send_multipart([bytes(size), b"x"])
        await here.until(lambda: bool(here.lost))
        assert here.messages == []
        assert here.lost == ["a message came without its number, 0"]


async def test_a_number_alone_is_no_message(endpoint: str) -> None:
    async with raw_peer(endpoint) as (here, peer):
        peer.send()
        peer.send(b"fine")
        await here.until(lambda: bool(here.messages))
        assert (here.messages, here.link.dropped) == ([[b"fine"]], 1)


async def test_what_a_full_link_refused_leaves_no_gap(endpoint: str) -> None:
    async with pair(endpoint) as (here, there):
        there.link.send_nowait([b"open"])
        await here.until(lambda: bool(here.messages))
        sent = fill(there.link)
        await there.link.send([b"last"])
        await here.until(lambda: len(here.messages) == 2 + sent)
        assert (here.messages[-1], here.lost) == ([b"last"], [])


async def test_too_large_a_frame_ends_the_connection(endpoint: str) -> None:
    async with raw_peer(endpoint) as (here, peer):
        peer.send(b"first")
        peer.send(bytes(MAX_FRAME_BYTES + 1))
        await here.until(lambda: bool(here.lost))
        assert here.messages == [[b"first"]]
        with pytest.raises(LinkClosed):
            here.link.send_nowait([b"x"])


async def test_bytes_that_are_not_zeromq_are_counted_and_disturb_nobody(endpoint: str) -> None:
    async with pair(endpoint) as (here, there):
        there.link.send_nowait([b"open"])
        await here.until(lambda: bool(here.messages))
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(endpoint.removeprefix("ipc://"))
            stranger.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NO SUCH MECHANISM".ljust(52, b"!"))
        there.link.send_nowait([b"hello"])
        await here.until(lambda: len(here.messages) == 2)
        with anyio.fail_after(20):
            while not here.link.refused:
                await settle()
        assert (here.messages, here.lost) == ([[b"open"], [b"hello"]], [])


async def test_a_second_peer_is_not_heard(endpoint: str) -> None:
    async with pair(endpoint) as (here, there):
        there.link.send_nowait([b"one"])
        await here.until(lambda: len(here.messages) == 1)
        context = zmq.Context()
        second = context.socket(zmq.PAIR)
        second.connect(endpoint)
        second.send(b"intruder")
        second.close(0)
        context.term()
        there.link.send_nowait([b"two"])
        await here.until(lambda: len(here.messages) == 2)
        assert (here.messages, here.lost) == ([[b"one"], [b"two"]], [])


async def test_overflow_is_refused_and_room_comes_back(endpoint: str) -> None:
    async with raw_peer(endpoint) as (here, peer):
        peer.send(b"hello")
        await here.until(lambda: bool(here.messages))
        sent = fill(here.link)
        assert sent >= HIGH_WATER
        async with anyio.create_task_group() as group:
            group.start_soon(here.link.send, [b"waited"])
            await settle()
            received = 0
            with anyio.fail_after(60):
                while True:
                    while peer.socket.poll(0):
                        _, frame = peer.socket.recv_multipart()
                        received += 1
                        if frame == b"waited":
                            assert received == sent + 1
                            return
                    await settle()


async def test_a_waiting_send_is_told_that_the_link_closed(endpoint: str) -> None:
    here = End()
    here.link = Link.bind(endpoint, here.heard)
    with pytest.raises(LinkFull, match="no peer is there"):
        here.link.send_nowait([b"x"])
    outcome: list[type[Exception]] = []

    async def send() -> None:
        try:
            await here.link.send([b"x"])
        except LinkClosed as error:
            outcome.append(type(error))

    async with anyio.create_task_group() as group:
        group.start_soon(send)
        await settle()
        await settle()
        here.link.close()
    assert outcome == [LinkClosed]


@pytest.mark.parametrize("leaver", [0, 1], ids=["binder", "connector"])
async def test_the_peer_s_leaving_is_told_once_after_its_last_message(endpoint: str, leaver: int) -> None:
    async with pair(endpoint) as ends:
        gone, left = ends[leaver], ends[1 - leaver]
        ends[1].link.send_nowait([b"open"])
        await ends[0].until(lambda: bool(ends[0].messages))
        for number in range(200):
            gone.link.send_nowait([b"%d" % number])
        gone.link.close()
        await left.until(lambda: bool(left.lost))
        assert left.messages[-200:] == [[b"%d" % number] for number in range(200)]
        assert len(left.lost) == 1
        assert left.link.closed
        with pytest.raises(LinkClosed):
            left.link.send_nowait([b"x"])
        with pytest.raises(LinkClosed):
            gone.link.send_nowait([b"x"])


async def test_a_peer_that_leaves_inside_a_message_ends_the_link(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What had come before is delivered, and the loss is told, but not inside the send."""
    async with pair(endpoint) as (here, there):
        there.link.send_nowait([b"came before"])
        sent: list[bytes] = []

        def send(frame: bytes, flags: int) -> None:
            if sent:
                raise zmq.Again
            sent.append(frame)

        real = here.link._socket
        while not int(real.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            pass  # the loop does not turn: nothing is delivered yet
        monkeypatch.setattr(here.link, "_socket", FakeSend(real, send))
        with pytest.raises(LinkClosed):
            here.link.send_nowait([b"one", b"two"])
        assert sent == [number_frame(0)]
        assert (here.messages, here.lost) == ([], [])
        assert here.link.closed
        with pytest.raises(LinkClosed):
            here.link.send_nowait([b"three"])
        await here.until(lambda: bool(here.lost))
        assert here.messages == [[b"came before"]]
        assert len(here.lost) == 1


class FakeSend:
    """A socket with another `send`."""

    def __init__(self, real: "zmq.Socket[bytes]", send: Callable[[bytes, int], None]) -> None:
        self._real = real
        self.send = send

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


async def test_nobody_at_the_address_is_a_loss(endpoint: str) -> None:
    there = End()
    there.link = Link.connect(endpoint, there.heard, on_lost=there.gone)
    there.link.send_nowait([b"queued"])
    await there.until(lambda: bool(there.lost))
    there.link.close()


async def test_no_callback_after_close(endpoint: str) -> None:
    async with pair(endpoint) as (here, there):
        there.link.send_nowait([b"one"])
        there.link.send_nowait([b"two"])

        def once(frames: list[bytes]) -> None:
            here.heard(frames)
            here.link.close()

        here.link._on_message = once
        await here.until(lambda: bool(here.messages))
        await settle()
        assert (here.messages, here.lost) == ([[b"one"]], [])


async def test_drain_now_delivers_without_a_turn_of_the_loop(endpoint: str) -> None:
    async with raw_peer(endpoint) as (here, peer):
        peer.send(b"open")
        await here.until(lambda: bool(here.messages))
        for _ in range(3 * DRAIN_BATCH):
            peer.send(b"x")
        poller = zmq.Poller()
        poller.register(here.link._socket, zmq.POLLIN)
        while len(here.messages) < 1 + 3 * DRAIN_BATCH:
            assert poller.poll(10_000)
            here.link.drain_now()


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
        while not here.link.refused:
            await anyio.lowlevel.checkpoint()
        # A socket may take a message before it knows that it is turned away; nobody gets it.
        with contextlib.suppress(LinkFull, LinkClosed):
            there.link.send_nowait([b"secret"])
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
        assert here.messages == []


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


async def test_a_closed_link_leaves_no_descriptor(endpoint: str) -> None:
    async with pair(endpoint):
        await settle()
    before = len(os.listdir(DESCRIPTORS))
    for _ in range(5):
        with LocalEndpoint() as fresh:
            async with pair(fresh.address) as (here, there):
                there.link.send_nowait([b"x"])
                await here.until(lambda end=here: bool(end.messages))  # type: ignore[misc]
    assert len(os.listdir(DESCRIPTORS)) == before


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's word on who connected is asked on Linux alone")
async def test_the_connecting_process_is_known_before_its_first_message(endpoint: str) -> None:
    said: list[int | None] = []
    here = End()

    def heard(frames: list[bytes]) -> None:
        said.append(here.link.peer_pid)
        here.heard(frames)

    here.link = Link.bind(endpoint, heard)
    program = (
        "import asyncio, sys\n"
        "from actors.link import Link\n"
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
    monkeypatch.setattr("actors.socket.os.getuid", lambda: os.geteuid() + 1)
    here, there = End(), End()
    here.link = Link.bind(endpoint, here.heard, on_lost=here.gone)
    monkeypatch.undo()
    there.link = Link.connect(endpoint, there.heard, on_lost=there.gone)
    while not here.link.refused:
        await anyio.lowlevel.checkpoint()
    with pytest.raises(LinkFull):
        here.link.send_nowait([b"x"])
    assert here.messages == []
    here.link.close()
    there.link.close(0)
