"""The client of a scripted predecessor: its socket, its streams and its failures."""

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import psutil
import pytest

from actors.transport.endpoint import LocalEndpoint
from cli.client.predecessor import HttpPredecessor
from cli.config.settings import Settings
from gateway.fleet.succession import PredecessorReply, decode_step, encode_line, purpose_of
from gateway.fleet.take_over import TakeOverFailed
from gateway.streaming.peer import PeerUnreachable

pytestmark = pytest.mark.anyio

OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@asynccontextmanager
async def predecessor(
    keeps: Serve = nothing, gives: Callable[[socket.socket, bytes], None] | None = None, **settings: Any
) -> AsyncIterator[HttpPredecessor]:
    """Run a predecessor, whose streams `keeps` serves. `gives` answers the request for its socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener, LocalEndpoint() as http:
        port: int = listener.getsockname()[1]

        def reply(**more: str) -> bytes:
            return encode_line(PredecessorReply(1, "127.0.0.1", port, **more))

        async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                if decode_step(line).step != "take":
                    writer.write(reply())
                    continue
                with writer.get_extra_info("socket").dup() as connection:
                    if gives is not None:
                        gives(connection, reply(http=str(http.path)))
                    else:
                        socket.send_fds(connection, [reply(http=str(http.path))], [listener.fileno()])
            writer.close()

        with LocalEndpoint(purpose=purpose_of(port)) as control:
            async with (
                await asyncio.start_unix_server(answers, str(control.path)),
                await asyncio.start_unix_server(keeps, str(http.path)),
            ):
                made = HttpPredecessor(Settings(port=port, **settings), timeout_s=60.0)
                yield made
                if made._connection is not None:
                    await made._connection.aclose()


async def test_a_check_returns_the_process_of_the_predecessor() -> None:
    async with predecessor() as found:
        assert await found.check() == 1
    assert await HttpPredecessor(Settings(port=found._port)).check() == 0, "the port is free"


async def test_the_number_of_connections_has_no_limit() -> None:
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
    async with predecessor(keeps) as old:
        descriptor = await old.meet()
        assert descriptor is not None
        assert not os.get_inheritable(descriptor), "a worker that keeps it open would keep the port"
        os.close(descriptor)

        async def one(number: int) -> None:
            async with old.ask("GET", f"/v1/streams/{number}", {}) as answer:
                got.append(b"".join([part async for part in answer.body()]))

        async with anyio.create_task_group() as group:
            for number in range(count):
                group.start_soon(one, number)
    assert got == [b"data: 1\n\n"] * count


async def test_a_request_is_forwarded_byte_for_byte() -> None:
    heads: list[bytes] = []

    async def keeps(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK)
        writer.close()

    key = "schl\u00fcssel"
    async with predecessor(keeps, api_key=key) as old:
        os.close(await old.meet() or -1)
        as_read = f"Bearer {key}".encode().decode("latin-1")
        async with old.ask("GET", "/v1/streams/x", {"authorization": as_read}) as answer:
            assert answer.status == 200
    assert f"authorization: Bearer {key}\r\n".encode() in heads[0].replace(b"Authorization", b"authorization")


async def test_what_listens_on_the_port_gets_nothing() -> None:
    """Any process may: it gets no key, and no byte."""
    received: list[bytes] = []
    over = anyio.Event()

    async def listens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read())
        writer.close()
        over.set()

    async with await asyncio.start_server(listens, "127.0.0.1", 0) as server:
        port: int = server.sockets[0].getsockname()[1]
        with pytest.raises(TakeOverFailed, match="does not hand over: it is not a Baton of this user"):
            await HttpPredecessor(Settings(port=port, admin_key="root", api_key="key")).meet()
        await over.wait()
    assert received == [b""]


def refuses(connection: socket.socket, reply: bytes) -> None:
    connection.send(reply[:-2] + b',"problem":"another one was first"}\n')


def gives_no_socket(connection: socket.socket, reply: bytes) -> None:
    connection.send(reply)


def gives_another_socket(connection: socket.socket, reply: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        socket.send_fds(connection, [reply], [other.fileno()])


def gives_a_connection(connection: socket.socket, reply: bytes) -> None:
    socket.send_fds(connection, [reply], [connection.fileno()])


def gives_a_file(connection: socket.socket, reply: bytes) -> None:
    with Path("/dev/null").open() as file:
        socket.send_fds(connection, [reply], [file.fileno()])


def names_an_open_folder(connection: socket.socket, reply: bytes) -> None:
    listener = re.sub(rb'"http":"[^"]+"', b'"http":"/tmp/http"', reply)
    with socket.create_server(("127.0.0.1", 0)) as other:
        socket.send_fds(connection, [listener], [other.fileno()])


def is_no_gateway(connection: socket.socket, _: bytes) -> None:
    connection.send(b"220 mail.example ESMTP\r\n")


def hangs_up(connection: socket.socket, _: bytes) -> None:
    connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("gives", "words"),
    [
        (refuses, "another one was first"),
        (gives_no_socket, "did not send its socket"),
        (gives_another_socket, "did not send its socket"),
        (gives_a_connection, "did not send its socket"),
        (gives_a_file, "not a socket|Socket operation"),
        (names_an_open_folder, "did not send its socket"),
        (is_no_gateway, "invalid message"),
        (hangs_up, "closed the connection"),
    ],
)
async def test_an_invalid_answer_is_a_failure(gives: Callable[[socket.socket, bytes], None], words: str) -> None:
    before = psutil.Process().num_fds()
    async with predecessor(gives=gives) as old:
        with pytest.raises(TakeOverFailed, match=f"does not hand over: .*({words})"):
            await old.meet()
    while psutil.Process().num_fds() > before:  # the scripted gateway closes its connection in its own time
        await anyio.lowlevel.checkpoint()


async def test_a_gateway_on_another_address_is_not_in_the_way() -> None:
    async with predecessor() as old:
        elsewhere = HttpPredecessor(Settings(host="127.0.0.2", port=old._port))
        assert await elsewhere.meet() is None
        assert not await elsewhere.relieve()


async def test_a_predecessor_that_does_not_answer_is_a_failure() -> None:
    over = anyio.Event()

    async def still(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    async with predecessor(still) as old:
        os.close(await old.meet() or -1)
        old._timeout_s = 0.05
        with pytest.raises(PeerUnreachable):
            async with old.ask("GET", "/v1/streams/x", {}):
                pass
        over.set()


async def test_a_predecessor_is_gone_when_its_socket_is_closed() -> None:
    async with predecessor() as old:
        await old.gone()  # it was not met
        os.close(await old.meet() or -1)
        with anyio.move_on_after(0.01) as waited:
            await old.gone()
        assert waited.cancelled_caught
    await old.gone()
