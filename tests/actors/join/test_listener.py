"""The join listener, over real TCP: which peers may join, which may not, and why."""

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import zmq
from structlog.testing import capture_logs

from actors.system import ActorSystem
from actors.transport.allow_list import Listed
from actors.transport.join_tokens import parse_token
from actors.transport.keys import KeyPair, make_key
from protocol.bounds import MAX_FRAME_BYTES
from protocol.codec import encode
from protocol.commands import Cancel, Welcome
from protocol.events import Gauges, Heartbeat, Hello
from tests.actors.join.entrance import GENEROUS, HELLO, Client, Entrance, entrance, joined

pytestmark = pytest.mark.anyio


def enrolling(own: KeyPair) -> Hello:
    """The `Hello` of a worker with a token, which registers its key."""
    return msgspec.structs.replace(HELLO, key=own.public_text)


async def test_a_listed_worker_gets_a_link_of_its_own(tmp_path: Path) -> None:
    async with entrance(tmp_path) as door, joined(door) as client:
        (request,) = door.requests
        assert (request.name, request.hello) == ("far", HELLO)
        assert request.address.startswith("127.0.0.1:")
        assert client.received == [Welcome(1)]
        big = b"x" * MAX_FRAME_BYTES
        await client.link.send([big, b"y"])
        request.link.send_nowait([encode(Cancel(number)) for number in range(100)])
        await door.until(lambda: bool(door.received) and len(client.received) == 101)
        assert door.received == [[big, b"y"]]
        client.link._socket.send_multipart([b"\0" * 8, bytes(MAX_FRAME_BYTES + 1)])
        await door.until(lambda: bool(door.lost))
        assert len(door.received) == 1
        client.link.close()
        await door.until(lambda: bool(door.lost))
        assert door.rejected() == {}


async def test_a_listener_that_was_shut_before_it_opened_stays_shut(tmp_path: Path) -> None:
    async with ActorSystem() as system:
        made = Entrance(tmp_path, GENEROUS, None, system)
        system.start_soon(made.join.run, made.listener)
        made.join.shut()
        await made.until(lambda: made.listener.fileno() < 0)
        with pytest.raises(ConnectionRefusedError):
            made.dial()


async def test_shutting_declines_pending_peers(tmp_path: Path) -> None:
    async with entrance(tmp_path) as door, door.connected(door.keys()) as client:
        await door.until(lambda: len(door.join._connections) == 1)
        door.join.shut()
        await client.link.send([encode(HELLO)])
        await door.until(lambda: bool(client.lost))
        assert client.received == [Welcome(0, "the gateway is shutting down")]
        assert (door.rejected(), door.requests) == ({"taken": 1}, [])


async def test_a_request_that_the_recipient_does_not_take_is_declined(tmp_path: Path) -> None:
    async with entrance(tmp_path) as door, door.connected(door.keys()) as client:
        await door.until(lambda: len(door.join._connections) == 1)
        door.context.ref.stop()
        await door.context.ref.wait_stopped()
        await client.link.send([encode(HELLO)])
        await door.until(lambda: bool(client.lost))
        assert client.received == [Welcome(0, "the gateway has no room for another join request: come again")]


async def test_closing_the_link_ends_the_connection_of_the_worker(tmp_path: Path) -> None:
    async with entrance(tmp_path) as door, joined(door) as client:
        door.requests[0].link.close()
        await door.until(lambda: bool(client.lost))


async def test_a_refusal_arrives(tmp_path: Path) -> None:
    async with entrance(tmp_path) as door, joined(door) as client:
        door.requests[0].decline("not today")
        await door.until(lambda: bool(client.lost))
        assert client.received[-1] == Welcome(0, "not today")


@pytest.mark.parametrize("wrong", ["key", "server", "plain", "another mechanism"])
async def test_a_peer_without_the_keys_is_rejected_before_its_first_frame(tmp_path: Path, wrong: str) -> None:
    async with entrance(tmp_path) as door:
        other = KeyPair(b"\x07" * 32)
        keys = {"key": door.keys(other), "server": door.keys(server=other.public), "plain": None}
        if wrong == "another mechanism":
            context = zmq.Context()
            peer = context.socket(zmq.PAIR)
            peer.setsockopt_string(zmq.PLAIN_USERNAME, "far")
            peer.setsockopt_string(zmq.PLAIN_PASSWORD, "secret")
            peer.connect(f"tcp://127.0.0.1:{door.port}")
            await door.until(lambda: bool(door.rejected()))
            peer.close(0)
            context.term()
        else:
            async with door.connected(keys[wrong]) as client:
                with contextlib.suppress(Exception):
                    client.link.send_nowait([encode(HELLO)])
                await door.until(lambda: bool(door.rejected()) and bool(client.lost))
        assert set(door.rejected()) == {"key" if wrong == "key" else "handshake"}
        assert door.requests == []


async def test_the_list_is_read_for_each_connection_and_removed_keys_are_disconnected(tmp_path: Path) -> None:
    async with entrance(tmp_path, replace(GENEROUS, revoke_s=0.01)) as door:
        new = make_key(tmp_path / "new")
        door.listed.add("new", new.public_text)
        async with joined(door), door.connected(door.keys(new)) as client:
            await client.link.send([encode(HELLO)])
            await door.until(lambda: len(door.requests) == 2)
            assert [each.name for each in door.requests] == ["far", "new"]
            door.listed.remove("new")
            await door.until(lambda: bool(client.lost))
            assert not door.requests[0].link.closed
            door.listed.remove("far")
            await door.until(lambda: len(door.lost) == 2)
            async with door.connected(door.keys()) as late:
                await door.until(lambda: bool(late.lost))
        assert set(door.rejected()) == {"key"}


async def test_a_renamed_key_joins_again_under_its_new_name(tmp_path: Path) -> None:
    async with entrance(tmp_path, replace(GENEROUS, revoke_s=0.01)) as door, joined(door) as client:
        door.listed.remove("far")
        door.listed.add("near", door.worker.public_text)
        await door.until(lambda: bool(client.lost))
        async with joined(door):
            assert [each.name for each in door.requests] == ["far", "near"]


async def test_an_invalid_file_rejects_its_worker_alone_and_is_logged_once(tmp_path: Path) -> None:
    async with entrance(tmp_path, replace(GENEROUS, revoke_s=0.01)) as door:
        new = make_key(tmp_path / "new")
        door.listed.add("new", new.public_text)
        with capture_logs() as lines:
            async with joined(door) as near, door.connected(door.keys(new)) as client:
                await client.link.send([encode(HELLO)])
                await door.until(lambda: len(door.requests) == 2)
                file = tmp_path / "workers" / "new.pub"
                file.write_text(new.public_text[:10])
                await door.until(lambda: bool(client.lost))
                async with door.connected(door.keys(new)) as again:
                    await door.until(lambda: bool(again.lost))
                file.write_text(new.public_text)
                async with door.connected(door.keys(new)) as mended:
                    await mended.link.send([encode(HELLO)])
                    await door.until(lambda: len(door.requests) == 3)
                assert near.lost == []
        assert door.rejected() == {"key": 1}
        (line,) = [each for each in lines if each["event"] == "allow_list_refused"]
        assert line["problem"] == "new.pub: a key has 64 hexadecimal digits"


async def test_replayed_bytes_are_rejected(tmp_path: Path) -> None:
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
            await door.until(lambda: bool(client.received))
            client.link.close()
            await door.until(lambda: bool(door.lost))
        assert len(recorded) > 400
        with door.dial() as again:
            again.sendall(recorded)
            await door.until(lambda: bool(door.rejected()))
        assert len(door.requests) == 1
        assert set(door.rejected()) == {"handshake"}


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([b"\xc1"], "frame"),
        ([b""], "frame"),
        ([encode(Heartbeat(Gauges()))], "frame"),
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
        assert (door.rejected(), door.requests) == ({reason: 1}, [])


async def test_the_tokens_are_read_once_for_each_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can connect, and there may be hundreds of them."""
    async with entrance(tmp_path) as door:
        read = door.tokens.read
        reads: list[Listed] = []

        def noted() -> Listed:
            reads.append(read())
            return reads[-1]

        monkeypatch.setattr(door.tokens, "read", noted)
        for count in (1, 2):
            async with door.connected(door.keys()) as client:
                await client.link.send([encode(HELLO)])
                await door.until(lambda: len(door.requests) == count)  # noqa: B023
            assert len(reads) == count


async def test_a_token_admits_one_worker_which_takes_the_place_of_the_one_with_its_name(tmp_path: Path) -> None:
    async with entrance(tmp_path) as door, joined(door) as former:
        token, own = parse_token(door.tokens.make("far")), KeyPair.generate()
        async with door.connected(door.keys(token)) as client, door.connected(door.keys(token)) as thief:
            await door.until(lambda: len(door.join._connections) == 3)
            await client.link.send([encode(enrolling(own))])
            await door.until(lambda: len(door.requests) == 2 and bool(former.lost) and bool(client.received))
            assert (door.requests[1].name, client.received, client.lost) == ("far", [Welcome(1)], [])
            await thief.link.send([encode(enrolling(KeyPair.generate()))])
            await door.until(lambda: bool(thief.lost))
            assert thief.received == [Welcome(0, "the join token was used, was replaced, or has expired")]
            assert (door.rejected(), len(door.requests)) == ({"key": 1}, 2)
            assert door.listed.read().names == {own.public: "far"}
            door.listed.remove("far")
            door.join._close_revoked()
            await door.until(lambda: bool(client.lost))


@pytest.mark.parametrize("wrong", ["no key", "not a key", "a key and no token"])
async def test_a_hello_has_a_key_if_and_only_if_it_comes_with_a_token(tmp_path: Path, wrong: str) -> None:
    async with entrance(tmp_path) as door:
        token = parse_token(door.tokens.make("near"))
        own = KeyPair.generate()
        hello = {"no key": HELLO, "not a key": msgspec.structs.replace(HELLO, key="x")}.get(wrong, enrolling(own))
        keys = door.keys() if wrong == "a key and no token" else door.keys(token)
        async with door.connected(keys) as client:
            await client.link.send([encode(hello)])
            await door.until(lambda: bool(client.lost))
        assert set(door.rejected()) == {"frame" if wrong == "a key and no token" else "key"}
        assert door.requests == []
        assert list(door.tokens.read().names.values()) == ["near"]


async def test_tokens_that_cannot_be_read_admit_nobody_and_are_logged_once(tmp_path: Path) -> None:
    async with entrance(tmp_path) as door:
        (tmp_path / "tokens").write_text("no folder")
        with capture_logs() as lines:
            async with joined(door), door.connected(door.keys(KeyPair.generate())) as client:
                await door.until(lambda: bool(client.lost))
        assert door.rejected() == {"key": 1}
        (line,) = [each for each in lines if each["event"] == "allow_list_refused"]
        assert line["problem"].endswith("tokens cannot be read: Not a directory")
