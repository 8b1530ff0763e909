"""Any bytes on a worker's local socket: they are counted and dropped; its worker and its neighbour notice nothing."""

import asyncio
import contextlib
import socket

import anyio
import anyio.to_thread
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.transport.endpoint import LocalEndpoint
from actors.transport.link import Link
from actors.transport.rejections import Rejection
from tests.actors.transport.ends import End, pair
from tests.actors.transport.zmtp import GREETING, SIGNATURE

pytestmark = pytest.mark.anyio

WAIT_S = 60.0

garbage = st.one_of(
    st.binary(min_size=1, max_size=600),
    st.binary(max_size=80).map(lambda tail: SIGNATURE + tail),
    st.binary(max_size=200).map(lambda tail: GREETING + tail),
    # A command other than READY, or a READY with invalid properties.
    st.binary(max_size=100).map(lambda tail: GREETING + bytes([4, len(tail)]) + tail),
    st.binary(max_size=100).map(lambda tail: GREETING + bytes([4, 6 + len(tail)]) + b"\5READY" + tail),
    # A message before the handshake, and a length of 2^63 - 1.
    st.binary(max_size=100).map(lambda tail: GREETING + bytes([0, len(tail)]) + tail),
    st.binary(max_size=40).map(lambda tail: GREETING + b"\2\x7f" + b"\xff" * 7 + tail),
)


class Watched:
    """A worker's link, what it received, and what was refused on it."""

    def __init__(self, endpoint: LocalEndpoint) -> None:
        self.path = str(endpoint.path)
        self.end = End()
        self.rejected: list[Rejection] = []
        self.end.link = Link.bind(
            endpoint.address, self.end.receive, on_lost=self.end.gone, on_rejected=self.rejected.append
        )

    def throw(self, data: bytes) -> socket.socket:
        """The connection of another peer that has sent `data`."""
        other = socket.socket(socket.AF_UNIX)
        other.connect(self.path)
        with contextlib.suppress(OSError):  # hung up on already
            other.sendall(data)
        return other

    async def until_refused(self, times: int) -> None:
        with anyio.fail_after(WAIT_S):
            while len(self.rejected) < times:  # noqa: ASYNC110  libzmq tells later
                await anyio.sleep(0.002)


async def test_a_link_hears_its_worker_through_any_garbage() -> None:
    with LocalEndpoint() as own, LocalEndpoint() as next_door:
        async with pair(next_door.address) as (neighbour, calm):
            watched = Watched(own)
            loop = asyncio.get_running_loop()
            held: list[socket.socket] = [watched.throw(GREETING[:40]), watched.throw(b"\1\0"), watched.throw(b"x" * 99)]
            worker = Link.connect(own.address, lambda frames: None)
            await worker.send([b"0"])
            await calm.link.send([b"0"])
            await watched.end.until(lambda: bool(watched.end.messages))
            said = 0

            async def try_it(data: bytes, hang_up: bool) -> None:
                nonlocal said
                other = watched.throw(data)
                other.close() if hang_up else held.append(other)
                said += 1
                await worker.send([b"%d" % said])
                await calm.link.send([b"%d" % said])
                await watched.end.until(lambda: len(watched.end.messages) == said + 1)
                await neighbour.until(lambda: len(neighbour.messages) == said + 1)

            @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
            @given(data=garbage, hang_up=st.booleans())
            def every(data: bytes, hang_up: bool) -> None:
                asyncio.run_coroutine_threadsafe(try_it(data, hang_up), loop).result(WAIT_S)

            await anyio.to_thread.run_sync(every)
            for each in held:
                each.close()
            await watched.until_refused(3 + said)
            expected = [[b"%d" % number] for number in range(said + 1)]
            assert (watched.end.messages, watched.end.lost) == (expected, [])
            assert (neighbour.messages, neighbour.lost, neighbour.link.rejected) == (expected, [], 0)
            assert set(watched.rejected) == {Rejection.HANDSHAKE}
            assert watched.end.link.rejected == 3 + said, "each once"
            worker.close(0)
            watched.end.link.close(0)


async def worker_joins(watched: Watched, endpoint: LocalEndpoint) -> None:
    worker = Link.connect(endpoint.address, lambda frames: None)
    await worker.send([b"here"])
    await watched.end.until(lambda: watched.end.messages == [[b"here"]])
    assert watched.end.lost == []
    worker.close(0)
    watched.end.link.close(0)


@pytest.mark.parametrize(
    "data",
    [GREETING + b"\4\6\5WHAT!", GREETING + b"\0\1x", GREETING.replace(b"NULL", b"NONE")],
    ids=["unknown command", "message first", "mechanism"],
)
async def test_a_handshake_that_fails_is_counted_and_the_worker_joins(data: bytes) -> None:
    with LocalEndpoint() as endpoint:
        watched = Watched(endpoint)
        with watched.throw(data):
            await watched.until_refused(1)
            assert watched.rejected == [Rejection.HANDSHAKE]
        await worker_joins(watched, endpoint)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\1\0", b"\1\0" + bytes(20), b"\0", b"x" * 300])
async def test_what_needs_no_handshake_is_counted_and_takes_no_workers_place(data: bytes) -> None:
    """libzmq would take it for a peer of ZMTP 1.0, the one that the socket has."""
    with LocalEndpoint() as endpoint:
        watched = Watched(endpoint)
        with watched.throw(data):
            await watched.until_refused(1)
            await worker_joins(watched, endpoint)
        assert watched.rejected == [Rejection.HANDSHAKE]


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", GREETING[:20], b""], ids=["http", "half", "nothing"])
async def test_so_it_is_over_tcp(data: bytes) -> None:
    end = End()
    end.link = Link.bind("tcp://127.0.0.1:*", end.receive, on_lost=end.gone)
    host, _, port = end.link.address.removeprefix("tcp://").partition(":")
    with socket.create_connection((host, int(port))) as other:
        other.sendall(data)
    with anyio.fail_after(WAIT_S):
        while not end.link.rejected:  # noqa: ASYNC110  libzmq tells later
            await anyio.sleep(0.002)
    assert (end.link.rejected, end.messages, end.lost) == (1, [], [])
    end.link.close(0)
