"""Bounds on the cost of pending peers and joined workers, at the edge; others are not disturbed."""

import asyncio
import contextlib
import socket
import struct
from dataclasses import replace
from pathlib import Path
from unittest import mock

import anyio
import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.join.listener import JoinLimits
from actors.transport.allow_list import AllowList
from actors.transport.keys import make_key
from actors.transport.log_limit import BURST, PER_S
from actors.transport.rate_limit import PeerRate
from protocol.codec import encode
from tests.actors.join.entrance import GENEROUS, HELLO, WAIT_S, entrance, joined

pytestmark = pytest.mark.anyio


async def test_a_message_that_does_not_end_ends_the_connection(tmp_path: Path) -> None:
    async with entrance(tmp_path, replace(GENEROUS, incomplete_bytes=1 << 20)) as door:
        async with joined(door) as client:

            async def pass_on(count: int) -> None:
                await client.link.send([bytes(1 << 18), bytes(1 << 18)])
                await door.until(lambda: len(door.received) == count)

            for count in range(1, 5):
                await pass_on(count)
            await client.link.send([bytes(1 << 19)] * 4)
            await door.until(lambda: bool(client.lost))
        assert len(door.received) == 4
        assert door.rejected() == {"message": 1}


async def test_a_silent_connection_is_closed_in_time(tmp_path: Path) -> None:
    async with entrance(tmp_path, replace(GENEROUS, hello_s=0.05)) as door:
        with door.dial() as silent, door.dial() as slow:
            slow.sendall(b"\xff\0\0\0\0\0\0\0\1")
            async with door.connected(door.keys()) as shy:
                await door.until(lambda: bool(shy.lost))
            await anyio.to_thread.run_sync(lambda: [each.recv(1 << 16) for each in (silent, slow)])
            await door.until(lambda: door.rejected().get("silent") == 3)
        assert door.requests == []


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_a_connection_that_ends_before_its_hello_is_counted(tmp_path: Path, reset: bool) -> None:
    async with entrance(tmp_path) as door:
        with door.dial() as peer:
            peer.sendall(b"\xff")
            if reset:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await door.until(lambda: door.rejected() == {"handshake": 1})
        assert door.requests == []


async def test_pending_peers_are_bounded_in_number_and_rate(tmp_path: Path) -> None:
    async with entrance(tmp_path, replace(GENEROUS, pending=3)) as door:
        dialled = [door.dial() for _ in range(3)]
        await door.until(lambda: len(door.join._connections) == 3)
        assert door.rejected() == {}
        dialled.append(door.dial())
        await door.until(lambda: door.rejected() == {"rate": 1})
        for each in dialled:
            each.close()
    (tmp_path / "1").mkdir()
    async with entrance(tmp_path / "1", replace(GENEROUS, pending_each=2)) as door:
        dialled = [door.dial() for _ in range(2)]
        await door.until(lambda: len(door.join._connections) == 2)
        with door.dial():
            await door.until(lambda: door.rejected() == {"rate": 1})
        with door.dial("127.0.0.2"):
            await door.until(lambda: len(door.join._connections) == 3)
        dialled.pop().close()
        await door.until(lambda: len(door.join._connections) == 1)
        async with joined(door), joined(door):  # those who said who they are count no more
            pass
        for each in dialled:
            each.close()
    (tmp_path / "2").mkdir()
    slow = JoinLimits(attempts_per_s=0.001, attempts_at_once=2.0)
    async with entrance(tmp_path / "2", slow) as door, joined(door), joined(door):
        assert door.rejected() == {}
        with door.dial() as third:
            await door.until(lambda: door.rejected() == {"rate": 1})
            assert third.recv(1 << 16) == b""


async def test_connections_are_bounded_in_number(tmp_path: Path) -> None:
    async with entrance(tmp_path, replace(GENEROUS, connections=2)) as door, joined(door), joined(door):
        with door.dial() as third:
            await door.until(lambda: door.rejected() == {"full": 1})
            assert third.recv(1 << 16) == b""


async def test_a_flood_ends_the_link_of_its_sender(tmp_path: Path) -> None:
    rate = PeerRate(messages_per_s=0.001, messages_at_once=10.0)
    async with entrance(tmp_path, rate=rate) as door, joined(door) as calm, joined(door) as wild:
        for number in range(9):  # with its Hello, as many as are allowed at once
            await wild.link.send([b"%d" % number])
        await door.until(lambda: len(door.received) == 9)
        assert (door.rejected(), wild.lost) == ({}, [])
        await wild.link.send([b"too much"])
        await door.until(lambda: bool(door.lost))
        assert door.lost == ["the peer sent more than 0.001 messages a second"]
        assert door.rejected() == {"flood": 1}
        await calm.link.send([b"still here"])
        await door.until(lambda: door.received[-1] == [b"still here"])
        assert len(door.received) == 10


async def test_too_many_bytes_before_the_hello_are_rejected(tmp_path: Path) -> None:
    async with entrance(tmp_path, replace(GENEROUS, opening_bytes=2048)) as door:
        async with joined(door):
            assert door.rejected() == {}
        async with door.connected(door.keys()) as client:
            await client.link.send([encode(HELLO), bytes(4096)])
            await door.until(lambda: bool(client.lost))
        assert set(door.rejected()) <= {"handshake", "frame"}
        assert len(door.requests) == 1


GARBAGE = st.one_of(
    st.binary(max_size=600),
    st.binary(max_size=200).map(lambda tail: b"\xff\0\0\0\0\0\0\0\1\x7f\3\0CURVE" + bytes(47) + tail),
    st.binary(max_size=200).map(lambda tail: b"\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL" + bytes(48) + tail),
    st.binary(max_size=40).map(lambda tail: b"\xff\0\0\0\0\0\0\0\1\x7f\3\1CURVE" + bytes(47) + b"\6\xff" * 8 + tail),
)


async def test_garbage_is_rejected_and_disturbs_no_worker(tmp_path: Path) -> None:
    """Whatever bytes, whole or half, with the connection left open or not: a joined worker's messages all arrive."""
    async with entrance(tmp_path, replace(GENEROUS, pending=1000)) as door, joined(door) as client:
        door.join._limits = replace(door.join._limits, hello_s=0.5)  # of those who come from now on
        loop = asyncio.get_running_loop()
        said = 0
        left: list[socket.socket] = []

        async def try_it(garbage: bytes, hang_up: bool) -> None:
            nonlocal said
            peer = door.dial()
            with contextlib.suppress(OSError):  # hung up on already
                peer.sendall(garbage)
            peer.close() if hang_up else left.append(peer)
            said += 1
            await client.link.send([b"%d" % said])
            await door.until(lambda: len(door.received) == said)

        @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(garbage=GARBAGE, hang_up=st.booleans())
        def every(garbage: bytes, hang_up: bool) -> None:
            asyncio.run_coroutine_threadsafe(try_it(garbage, hang_up), loop).result(WAIT_S)

        await anyio.to_thread.run_sync(every)
        await door.until(lambda: len(door.join._connections) == 1)  # all the others are gone, also those who hung on
        for each in left:
            each.close()
        assert (len(door.requests), door.lost) == (1, [])
        assert door.received == [[b"%d" % number] for number in range(1, said + 1)]
        assert set(door.rejected()) <= {"handshake", "silent"}
        assert door.rejected()


async def test_a_flood_of_connections_is_no_flood_of_lines(tmp_path: Path) -> None:
    began = anyio.current_time()
    with structlog.testing.capture_logs() as logs:
        async with entrance(tmp_path, replace(GENEROUS, attempts_per_s=0.001, attempts_at_once=1.0)) as door:
            for _ in range(3 * BURST):
                door.dial().close()
            await door.until(lambda: door.rejected().get("rate") == 3 * BURST - 1)
    lines = [each for each in logs if each["event"] == "connection_refused"]
    assert BURST <= len(lines) <= BURST + PER_S * (anyio.current_time() - began)


async def test_the_list_is_read_once_for_a_burst_of_connections(tmp_path: Path) -> None:
    """1,024 files take 7 ms to look at. For each of 32 peers, that would hold the event loop for 0.2 s."""
    async with entrance(tmp_path) as door:
        await door.until(lambda: door.join._server is not None and door.join._server.is_serving())
        with mock.patch.object(AllowList, "files", autospec=True, side_effect=AllowList.files) as looks:
            dialled = [door.dial() for _ in range(8)]
            await door.until(lambda: len(door.join._connections) == 8)
        for each in dialled:
            each.close()
        assert looks.call_count < 4
        late = make_key(tmp_path / "late")
        door.listed.add("late", late.public_text)
        async with door.connected(door.keys(late)) as client:
            await client.link.send([encode(HELLO)])
            await door.until(lambda: [each.name for each in door.requests] == ["late"])
