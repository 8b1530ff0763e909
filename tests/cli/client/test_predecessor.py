"""The client of a scripted predecessor: its socket, its streams and its failures."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from cli.client.predecessor import HttpPredecessor
from cli.config.settings import Settings
from gateway.fleet.take_over import TakeOverFailed
from gateway.streaming.peer import PeerUnreachable

pytestmark = pytest.mark.anyio

OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def give(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a listening socket, as a gateway does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = writer.get_extra_info("socket").dup()
        with connection:
            socket.send_fds(connection, [b"l"], [listener.fileno()])
    writer.close()


@asynccontextmanager
async def predecessor(
    folder: Path, keeps: Serve, gives: Serve = give, **settings: Any
) -> AsyncIterator[HttpPredecessor]:
    """Run a predecessor that offers two sockets, which `keeps` and `gives` serve."""
    paths = {"listener": str(folder / "l"), "http": str(folder / "h")}
    heads: list[bytes] = []

    async def offers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        body = json.dumps({"pid": 1, **paths}).encode()
        writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    async with (
        await asyncio.start_server(offers, "127.0.0.1", 0) as server,
        await asyncio.start_unix_server(gives, paths["listener"]),
        await asyncio.start_unix_server(keeps, paths["http"]),
    ):
        made = HttpPredecessor(Settings(port=server.sockets[0].getsockname()[1], **settings), timeout_s=60.0)
        yield made


async def test_the_number_of_connections_has_no_limit(tmp_path: Path) -> None:
    """Each stream has a connection of its own."""
    count = 150
    asked, all_asked = 0, anyio.Event()

    async def keeps(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await reader.readuntil(b"\r\n\r\n")
        asked += 1
        if asked == count:
            all_asked.set()
        writer.write(OK)
        await all_asked.wait()
        writer.write(b"data: 1\n\n")
        writer.close()

    got: list[bytes] = []
    async with predecessor(tmp_path, keeps) as old:
        descriptor = await old.meet()
        assert descriptor is not None
        os.close(descriptor)

        async def one(number: int) -> None:
            async with old.ask("GET", f"/v1/streams/{number}", {}) as answer:
                got.append(b"".join([part async for part in answer.body()]))

        async with anyio.create_task_group() as group:
            for number in range(count):
                group.start_soon(one, number)
    assert got == [b"data: 1\n\n"] * count


async def test_a_request_is_forwarded_byte_for_byte(tmp_path: Path) -> None:
    heads: list[bytes] = []

    async def keeps(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK)
        writer.close()

    key = "schl\u00fcssel"
    async with predecessor(tmp_path, keeps, api_key=key) as old:
        os.close(await old.meet() or -1)
        as_read = f"Bearer {key}".encode().decode("latin-1")
        async with old.ask("GET", "/v1/streams/x", {"authorization": as_read}) as answer:
            assert answer.status == 200
    assert f"authorization: Bearer {key}\r\n".encode() in heads[0].replace(b"Authorization", b"authorization")


@pytest.mark.parametrize(
    ("answer", "said"), [(b"401 Unauthorized", "answered 401, so its key is another"), (b"501 No", "answered 501$")]
)
async def test_a_refusal_to_hand_over_is_explained(answer: bytes, said: str) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 " + answer + b"\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port: int = server.sockets[0].getsockname()[1]
        with pytest.raises(TakeOverFailed, match=said):
            await HttpPredecessor(Settings(port=port)).meet()


async def test_an_offer_without_a_socket_is_a_failure(tmp_path: Path) -> None:
    async def nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with predecessor(tmp_path, nothing, gives=nothing) as old:
        with pytest.raises(TakeOverFailed, match="does not hand over"):
            await old.meet()


async def test_a_predecessor_that_does_not_answer_is_a_failure(tmp_path: Path) -> None:
    over = anyio.Event()

    async def still(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    async with predecessor(tmp_path, still) as old:
        os.close(await old.meet() or -1)
        old._timeout_s = 0.05
        with pytest.raises(PeerUnreachable):
            async with old.ask("GET", "/v1/streams/x", {}):
                pass
        over.set()


async def test_a_predecessor_is_gone_when_its_socket_is_closed(tmp_path: Path) -> None:
    async def nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with predecessor(tmp_path, nothing) as old:
        await old.gone()  # it was not met
        os.close(await old.meet() or -1)
        with anyio.move_on_after(0.01) as waited:
            await old.gone()
        assert waited.cancelled_caught
    await old.gone()
