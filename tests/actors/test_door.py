"""The door, over real TCP: who gets in, who does not, why, and that nobody else notices."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from actors.allow_list import AllowList
from actors.arrival import Arrival
from actors.door import Door, DoorLimits, door_address, listen_at
from actors.endpoint import EndpointError
from actors.keys import KeyPair, make_key
from actors.link import CurveKeys, Link
from actors.rate import PeerRate
from actors.refusals import Refusals
from protocol.bounds import MAX_FRAME_BYTES, PROTOCOL_VERSION
from protocol.codec import decode_command, encode
from protocol.commands import Cancel, Welcome
from protocol.events import Beat, Gauges, Hello

pytestmark = pytest.mark.anyio

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


async def test_one_on_the_list_gets_a_link_of_its_own(tmp_path: Path) -> None:
    async with entrance(tmp_path) as door, guest(door) as client:
        (arrival,) = door.arrivals
        assert (arrival.name, arrival.hello) == ("far", HELLO)
        assert arrival.address.startswith("127.0.0.1:")
        assert client.heard == [Welcome(1)]
        big = b"x" * MAX_FRAME_BYTES
        await client.link.send([big, b"y"])
        arrival.link.send_nowait([encode(Cancel(number)) for number in range(100)])
        await door.until(lambda: bool(door.heard) and len(client.heard) == 101)
        assert door.heard == [[big, b"y"]]
        client.link._socket.send_multipart([b"\0" * 8, bytes(MAX_FRAME_BYTES + 1)])
        await door.until(lambda: bool(door.lost))
        assert len(door.heard) == 1
        client.link.close()
        await door.until(lambda: bool(door.lost))
        assert door.refused() == {}


async def test_a_door_that_was_shut_before_it_opened_stays_shut(tmp_path: Path) -> None:
    made = Entrance(tmp_path, GENEROUS, None)
    async with anyio.create_task_group() as group:
        group.start_soon(made.door.run, made.listener)
        made.door.shut()
        await made.until(lambda: made.listener.fileno() < 0)
        with pytest.raises(ConnectionRefusedError):
            made.dial()
        group.cancel_scope.cancel()


async def test_what_the_gateway_closes_is_closed_for_the_worker(tmp_path: Path) -> None:
    async with entrance(tmp_path) as door, guest(door) as client:
        door.arrivals[0].link.close()
        await door.until(lambda: bool(client.lost))


async def test_a_refusal_arrives(tmp_path: Path) -> None:
    async with entrance(tmp_path) as door, guest(door) as client:
        door.arrivals[0].decline("not today")
        await door.until(lambda: bool(client.lost))
        assert client.heard[-1] == Welcome(0, "not today")


@pytest.mark.parametrize("wrong", ["key", "server", "plain", "another mechanism"])
async def test_who_has_not_the_keys_never_says_a_word(tmp_path: Path, wrong: str) -> None:
    async with entrance(tmp_path) as door:
        stranger = KeyPair(b"\x07" * 32)
        keys = {"key": door.keys(stranger), "server": door.keys(server=stranger.public), "plain": None}
        if wrong == "another mechanism":
            context = zmq.Context()
            peer = context.socket(zmq.PAIR)
            peer.setsockopt_string(zmq.PLAIN_USERNAME, "far")
            peer.setsockopt_string(zmq.PLAIN_PASSWORD, "secret")
            peer.connect(f"tcp://127.0.0.1:{door.port}")
            await door.until(lambda: bool(door.refused()))
            peer.close(0)
            context.term()
        else:
            async with door.connected(keys[wrong]) as client:
                with contextlib.suppress(Exception):
                    client.link.send_nowait([encode(HELLO)])
                await door.until(lambda: bool(door.refused()) and bool(client.lost))
        assert set(door.refused()) == {"key" if wrong == "key" else "handshake"}
        assert door.arrivals == []


async def test_the_list_is_read_for_each_and_who_is_taken_off_is_cut_off(tmp_path: Path) -> None:
    async with entrance(tmp_path, replace(GENEROUS, revoke_s=0.01)) as door:
        new = make_key(tmp_path / "new")
        door.listed.add("new", new.public_text)
        async with guest(door), door.connected(door.keys(new)) as client:
            await client.link.send([encode(HELLO)])
            await door.until(lambda: len(door.arrivals) == 2)
            assert [arrival.name for arrival in door.arrivals] == ["far", "new"]
            door.listed.remove("new")
            await door.until(lambda: bool(client.lost))
            assert not door.arrivals[0].link.closed
            door.listed.remove("far")
            await door.until(lambda: len(door.lost) == 2)
            async with door.connected(door.keys()) as late:
                await door.until(lambda: bool(late.lost))
        assert set(door.refused()) == {"key"}


async def test_who_is_listed_under_another_name_comes_again_under_that(tmp_path: Path) -> None:
    async with entrance(tmp_path, replace(GENEROUS, revoke_s=0.01)) as door, guest(door) as client:
        door.listed.remove("far")
        door.listed.add("near", door.worker.public_text)
        await door.until(lambda: bool(client.lost))
        async with guest(door):
            assert [arrival.name for arrival in door.arrivals] == ["far", "near"]


async def test_a_message_that_does_not_end_ends_the_connection(tmp_path: Path) -> None:
    async with entrance(tmp_path, replace(GENEROUS, unheard_bytes=1 << 20)) as door:
        async with guest(door) as client:
            for count in range(1, 5):
                await client.link.send([bytes(1 << 18), bytes(1 << 18)])
                await door.until(lambda count=count: len(door.heard) == count)  # type: ignore[misc]
            await client.link.send([bytes(1 << 19)] * 4)
            await door.until(lambda: bool(client.lost))
        assert len(door.heard) == 4
        assert door.refused() == {"message": 1}


async def test_a_spoiled_file_locks_out_its_worker_alone_and_is_told_once(tmp_path: Path) -> None:
    async with entrance(tmp_path, replace(GENEROUS, revoke_s=0.01)) as door:
        new = make_key(tmp_path / "new")
        door.listed.add("new", new.public_text)
        with capture_logs() as told:
            async with guest(door) as near, door.connected(door.keys(new)) as client:
                await client.link.send([encode(HELLO)])
                await door.until(lambda: len(door.arrivals) == 2)
                file = tmp_path / "workers" / "new.pub"
                file.write_text(new.public_text[:10])
                await door.until(lambda: bool(client.lost))
                async with door.connected(door.keys(new)) as again:
                    await door.until(lambda: bool(again.lost))
                file.write_text(new.public_text)
                async with door.connected(door.keys(new)) as mended:
                    await mended.link.send([encode(HELLO)])
                    await door.until(lambda: len(door.arrivals) == 3)
                assert near.lost == []
        assert door.refused() == {"key": 1}
        (line,) = [each for each in told if each["event"] == "allow_list_refused"]
        assert line["problem"] == "new.pub: a key has 64 hexadecimal digits"


async def test_recorded_bytes_are_worth_nothing(tmp_path: Path) -> None:
    """All that one connection of a true worker said, said again."""
    async with entrance(tmp_path) as door:
        recorded = bytearray()

        async def record(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", door.port)

            async def there() -> None:
                while data := await reader.read(65536):
                    recorded.extend(data)
                    far_writer.write(data)
                far_writer.close()

            async def back() -> None:
                while data := await far_reader.read(65536):
                    writer.write(data)
                writer.close()

            await asyncio.gather(there(), back())

        tap = await asyncio.start_server(record, "127.0.0.1", 0)
        async with tap:
            client = Client(f"tcp://127.0.0.1:{tap.sockets[0].getsockname()[1]}", door.keys())
            await client.link.send([encode(HELLO)])
            await door.until(lambda: bool(client.heard))
            client.link.close()
            await door.until(lambda: bool(door.lost))
        assert len(recorded) > 400
        with door.dial() as again:
            again.sendall(recorded)
            await door.until(lambda: bool(door.refused()))
        assert len(door.arrivals) == 1
        assert set(door.refused()) == {"handshake"}


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([b"\xc1"], "frame"),
        ([b""], "frame"),
        ([encode(Beat(Gauges()))], "frame"),
        ([encode(HELLO), encode(HELLO)], "frame"),
        ([b"\x92\xa5hello\x01"], "frame"),
        ([b"\x93\xa5hello\xa1x\xc0"], "frame"),
    ],
    ids=["no msgpack", "empty", "beat first", "two hellos", "too short", "wrong types"],
)
async def test_a_first_message_that_is_no_hello_is_refused(tmp_path: Path, frames: list[bytes], reason: str) -> None:
    async with entrance(tmp_path) as door, door.connected(door.keys()) as client:
        await client.link.send(frames)
        await door.until(lambda: bool(client.lost))
        assert (door.refused(), door.arrivals) == ({reason: 1}, [])


async def test_who_says_nothing_is_let_go_in_time(tmp_path: Path) -> None:
    async with entrance(tmp_path, replace(GENEROUS, hello_s=0.05)) as door:
        with door.dial() as silent, door.dial() as slow:
            slow.sendall(b"\xff\0\0\0\0\0\0\0\1")
            async with door.connected(door.keys()) as shy:
                await door.until(lambda: bool(shy.lost))
            await anyio.to_thread.run_sync(lambda: [each.recv(1 << 16) for each in (silent, slow)])
            await door.until(lambda: door.refused().get("silent") == 3)
        assert door.arrivals == []


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_who_hangs_up_before_its_hello_is_counted(tmp_path: Path, reset: bool) -> None:
    async with entrance(tmp_path) as door:
        with door.dial() as stranger:
            stranger.sendall(b"\xff")
            if reset:
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await door.until(lambda: door.refused() == {"handshake": 1})
        assert door.arrivals == []


async def test_strangers_are_bounded_in_number_and_rate(tmp_path: Path) -> None:
    async with entrance(tmp_path, replace(GENEROUS, waiting=3)) as door:
        dialled = [door.dial() for _ in range(3)]
        await door.until(lambda: len(door.door._guests) == 3)
        assert door.refused() == {}
        dialled.append(door.dial())
        await door.until(lambda: door.refused() == {"rate": 1})
        for each in dialled:
            each.close()
    (tmp_path / "1").mkdir()
    async with entrance(tmp_path / "1", replace(GENEROUS, waiting_each=2)) as door:
        dialled = [door.dial() for _ in range(2)]
        await door.until(lambda: len(door.door._guests) == 2)
        with door.dial():
            await door.until(lambda: door.refused() == {"rate": 1})
        with door.dial("127.0.0.2"):
            await door.until(lambda: len(door.door._guests) == 3)
        dialled.pop().close()
        await door.until(lambda: len(door.door._guests) == 1)
        async with guest(door), guest(door):  # those who said who they are count no more
            pass
        for each in dialled:
            each.close()
    (tmp_path / "2").mkdir()
    slow = DoorLimits(attempts_per_s=0.001, attempts_at_once=2.0)
    async with entrance(tmp_path / "2", slow) as door, guest(door), guest(door):
        assert door.refused() == {}
        with door.dial() as third:
            await door.until(lambda: door.refused() == {"rate": 1})
            assert third.recv(1 << 16) == b""


async def test_guests_are_bounded_in_number(tmp_path: Path) -> None:
    async with entrance(tmp_path, replace(GENEROUS, guests=2)) as door, guest(door), guest(door):
        with door.dial() as third:
            await door.until(lambda: door.refused() == {"full": 1})
            assert third.recv(1 << 16) == b""


async def test_a_flood_costs_the_one_who_floods(tmp_path: Path) -> None:
    rate = PeerRate(messages_per_s=0.001, messages_at_once=10.0)
    async with entrance(tmp_path, rate=rate) as door, guest(door) as calm, guest(door) as wild:
        for number in range(9):  # with its Hello, as many as are allowed at once
            await wild.link.send([b"%d" % number])
        await door.until(lambda: len(door.heard) == 9)
        assert (door.refused(), wild.lost) == ({}, [])
        await wild.link.send([b"too much"])
        await door.until(lambda: bool(door.lost))
        assert door.lost == ["the peer sent more than 0.001 messages a second"]
        assert door.refused() == {"flood": 1}
        await calm.link.send([b"still here"])
        await door.until(lambda: door.heard[-1] == [b"still here"])
        assert len(door.heard) == 10


async def test_too_many_bytes_before_the_hello_are_a_refusal(tmp_path: Path) -> None:
    async with entrance(tmp_path, replace(GENEROUS, opening_bytes=2048)) as door:
        async with guest(door):
            assert door.refused() == {}
        async with door.connected(door.keys()) as client:
            await client.link.send([encode(HELLO), bytes(4096)])
            await door.until(lambda: bool(client.lost))
        assert set(door.refused()) <= {"handshake", "frame"}
        assert len(door.arrivals) == 1


GARBAGE = st.one_of(
    st.binary(max_size=600),
    st.binary(max_size=200).map(lambda tail: b"\xff\0\0\0\0\0\0\0\1\x7f\3\0CURVE" + bytes(47) + tail),
    st.binary(max_size=200).map(lambda tail: b"\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL" + bytes(48) + tail),
    st.binary(max_size=40).map(lambda tail: b"\xff\0\0\0\0\0\0\0\1\x7f\3\1CURVE" + bytes(47) + b"\6\xff" * 8 + tail),
)


async def test_garbage_is_turned_away_and_disturbs_no_guest(tmp_path: Path) -> None:
    """Whatever bytes, whole or half, with the connection left open or not: a guest's messages all arrive."""
    async with entrance(tmp_path, replace(GENEROUS, hello_s=0.5, waiting=1000)) as door, guest(door) as client:
        loop = asyncio.get_running_loop()
        said = 0
        left: list[socket.socket] = []

        async def try_it(garbage: bytes, hang_up: bool) -> None:
            nonlocal said
            stranger = door.dial()
            with contextlib.suppress(OSError):  # hung up on already
                stranger.sendall(garbage)
            stranger.close() if hang_up else left.append(stranger)
            said += 1
            await client.link.send([b"%d" % said])
            await door.until(lambda: len(door.heard) == said)

        @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(garbage=GARBAGE, hang_up=st.booleans())
        def every(garbage: bytes, hang_up: bool) -> None:
            asyncio.run_coroutine_threadsafe(try_it(garbage, hang_up), loop).result(WAIT_S)

        await anyio.to_thread.run_sync(every)
        await door.until(lambda: len(door.door._guests) == 1)  # all the others are gone, also those who hung on
        for each in left:
            each.close()
        assert (len(door.arrivals), door.lost) == (1, [])
        assert door.heard == [[b"%d" % number] for number in range(1, said + 1)]
        assert set(door.refused()) <= {"handshake", "silent"}
        assert door.refused()


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "tcp://localhost:1", "tcp://10.1.2.3:1", "tcp://[::1]:1"])
def test_an_address_that_strangers_cannot_reach_is_taken(address: str) -> None:
    assert door_address(address, public=False)[1] == 1


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:1", "tcp://[::]:1", "tcp://8.8.8.8:1", "tcp://example.org:1"])
def test_one_that_they_can_wants_to_be_meant(address: str) -> None:
    with pytest.raises(EndpointError, match="--allow-public-workers"):
        door_address(address, public=False)
    assert door_address(address, public=True)[1] == 1


@pytest.mark.parametrize("address", ["", "tcp://", "tcp://h", "tcp://h:x", "ipc://x", "tcp://h:70000", "tcp://h:1/x"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(EndpointError, match="tcp://HOST:PORT"):
        door_address(address, public=True)


def test_a_port_in_use_is_a_sentence() -> None:
    with listen_at("127.0.0.1", 0) as taken, pytest.raises(EndpointError, match="cannot listen for workers"):
        listen_at("127.0.0.1", taken.getsockname()[1])
