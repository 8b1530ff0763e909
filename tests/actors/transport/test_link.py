"""The link: round trips, callbacks, and every way a peer goes away."""

import asyncio
import itertools
import os
import sys
from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest
import zmq

from actors.transport.endpoint import LocalEndpoint
from actors.transport.link import DRAIN_BATCH, DRAIN_FRAMES, DRAIN_TURNS, Link, LinkClosed, LinkFull
from actors.transport.message import number_frame
from protocol.bounds import MAX_FRAMES_PER_MESSAGE
from tests.actors.transport.ends import End, pair, raw_peer, settle

pytestmark = pytest.mark.anyio


DESCRIPTORS = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"


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
            here.receive(frames)
            if frames == [b"bad"]:
                raise LookupError("in the callback")

        here.link._on_message = fragile
        for frame in (b"bad", b"good"):
            there.link.send_nowait([frame])
        await here.until(lambda: len(here.messages) == 2)
    assert [type(error) for error in raised] == [LookupError]


@pytest.mark.parametrize(
    ("frames", "most"), [(1, 2 * DRAIN_BATCH), (32, 2 * DRAIN_FRAMES // 32)], ids=["messages", "frames"]
)
async def test_a_flood_lets_the_loop_turn(endpoint: str, frames: int, most: int) -> None:
    async with pair(endpoint) as (here, there):
        turns: list[int] = []

        def turn() -> None:
            turns.append(len(here.messages))
            if len(here.messages) < 500:
                asyncio.get_running_loop().call_soon(turn)

        for number in range(500):
            there.link.send_nowait([b"%d" % number] * frames)
        turn()
        await here.until(lambda: len(here.messages) == 500)
        await settle()
        assert max(b - a for a, b in itertools.pairwise(turns)) <= most


async def test_a_message_of_many_frames_lets_the_loop_turn(endpoint: str) -> None:
    """Before: 1,024 frames were handled in one turn, which took 78 ms."""
    async with pair(endpoint) as (here, there):
        turns: list[int] = []

        def turn() -> None:
            turns.append(sum(map(len, here.messages)))
            if turns[-1] < MAX_FRAMES_PER_MESSAGE + 1:
                asyncio.get_running_loop().call_soon(turn)

        many = [b"%d" % number for number in range(MAX_FRAMES_PER_MESSAGE)]
        there.link.send_nowait(many)
        there.link.send_nowait([b"last"])
        turn()
        await here.until(lambda: here.link.received == 2)
        await settle()
        assert [frame for message in here.messages for frame in message] == [*many, b"last"]
        assert max(b - a for a, b in itertools.pairwise(turns)) <= 2 * DRAIN_FRAMES
        assert here.messages[-1] == [b"last"]


async def test_a_waiting_send_is_told_that_the_link_closed(endpoint: str) -> None:
    here = End()
    here.link = Link.bind(endpoint, here.receive)
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
        assert (left.link.closed, left.link.cut_off) == (True, False)
        with pytest.raises(LinkClosed):
            left.link.send_nowait([b"x"])
        with pytest.raises(LinkClosed):
            gone.link.send_nowait([b"x"])


class FakeSend:
    """A socket with another `send`."""

    def __init__(self, real: "zmq.Socket[bytes]", send: Callable[[bytes, int], None]) -> None:
        self._real = real
        self.send = send

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


async def test_a_peer_that_leaves_inside_a_message_ends_the_link(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages from before are delivered, and the loss is reported, but not inside the send."""
    async with pair(endpoint) as (here, there):
        there.link.send_nowait([b"open"])
        await here.until(lambda: bool(here.messages))
        here.messages.clear()
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


async def test_nobody_at_the_address_is_a_loss(endpoint: str) -> None:
    there = End()
    there.link = Link.connect(endpoint, there.receive, on_lost=there.gone)
    there.link.send_nowait([b"queued"])
    await there.until(lambda: bool(there.lost))
    there.link.close()


async def test_no_callback_after_close(endpoint: str) -> None:
    async with pair(endpoint) as (here, there):
        there.link.send_nowait([b"one"])
        there.link.send_nowait([b"two"])

        def once(frames: list[bytes]) -> None:
            here.receive(frames)
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


async def test_what_came_before_a_loss_is_delivered_in_several_turns(endpoint: str) -> None:
    """Nothing is sent meanwhile, and the loss is reported once, after the last message."""
    count = 3 * DRAIN_TURNS * DRAIN_BATCH
    async with raw_peer(endpoint) as (here, peer):
        peer.send(b"open")
        await here.until(lambda: bool(here.messages))
        here.messages.clear()
        for _ in range(count):
            peer.send(b"x")
        peer.socket.close()
        while not here.link.closed:
            here.link._on_monitor()  # the loop does not turn
        assert here.lost == []
        assert len(here.messages) == DRAIN_TURNS * DRAIN_BATCH
        with pytest.raises(LinkClosed):
            here.link.send_nowait([b"x"])
        await here.until(lambda: bool(here.lost))
        assert len(here.messages) == count
        await settle()
        assert len(here.lost) == 1


async def test_all_frames_of_a_peer_that_left_are_delivered_before_its_loss(endpoint: str) -> None:
    frames = MAX_FRAMES_PER_MESSAGE
    async with raw_peer(endpoint) as (here, peer):
        peer.send(b"open")
        await here.until(lambda: bool(here.messages))
        here.messages.clear()
        peer.send(*[b"x"] * frames)
        peer.socket.close()
        while not here.link.closed:
            here.link._on_monitor()  # the loop does not turn
        assert here.lost == []
        assert sum(map(len, here.messages)) == DRAIN_TURNS * DRAIN_FRAMES
        await here.until(lambda: bool(here.lost))
        assert sum(map(len, here.messages)) == frames


async def test_no_socket_of_a_link_waits_for_a_peer_unless_it_is_closed_so(endpoint: str) -> None:
    """A connection that ends with messages unsent may end with what its socket has at that moment, before the close."""
    async with pair(endpoint) as ends:
        found = [socket.linger for end in ends for socket in end.link._owned._context._sockets]
    assert found == [0] * len(found)
    assert len(found) >= 4, "their own, and a monitor of each"


async def test_a_closed_link_leaves_no_descriptor(endpoint: str) -> None:
    async with pair(endpoint):
        await settle()

    async def exchange() -> None:
        with LocalEndpoint() as fresh:
            async with pair(fresh.address) as (here, there):
                there.link.send_nowait([b"x"])
                await here.until(lambda: bool(here.messages))

    before = len(os.listdir(DESCRIPTORS))
    for _ in range(5):
        await exchange()
    assert len(os.listdir(DESCRIPTORS)) == before
