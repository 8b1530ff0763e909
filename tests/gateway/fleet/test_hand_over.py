"""The private socket of a gateway, for the one that takes its place."""

import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.lowlevel
import pytest

from actors.transport.endpoint import find_endpoints, is_of_this_user
from cli.client.predecessor_connection import NoAnswer, PredecessorConnection
from gateway.app import create_app
from gateway.fleet.hand_over import MAX_CONNECTIONS, HandOver, SuccessorListens
from gateway.fleet.succession import MAX_LINE_BYTES, purpose_of
from gateway.http.listener import Listener
from gateway.http.listeners import Listeners
from gateway.http.server import adopt, listen
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from tests.actors.inbox import Inbox

pytestmark = pytest.mark.anyio

CHOSEN = GatewaySettings(port=0, flush_s=0.1)
WAIT_S = 30.0


class Offering:
    """A gateway that hands over, and what became of it."""

    def __init__(self, listener: Listener, inbox: Inbox) -> None:
        self.listener = listener
        self.port: int = listener.getsockname()[1]
        self.inbox = inbox
        self._opened: list[PredecessorConnection] = []

    async def path(self) -> Path:
        while not (found := find_endpoints(purpose_of(self.port))):
            await anyio.lowlevel.checkpoint()
        (path,) = found
        return path

    async def connect(self) -> PredecessorConnection:
        while (connection := await PredecessorConnection.open(await self.path())) is None:
            await anyio.lowlevel.checkpoint()  # it is bound, and does not listen yet
        self._opened.append(connection)
        return connection

    async def disconnect(self) -> None:
        for connection in self._opened:
            await connection.aclose()


@asynccontextmanager
async def offering(**options: Any) -> AsyncIterator[Offering]:
    over = anyio.Event()
    inbox = Inbox()
    with listen(CHOSEN) as listener:
        hand_over = HandOver(Listeners(listener), inbox.ref, **options)
        app = create_app(Router(CHOSEN), CHOSEN)
        async with anyio.create_task_group() as group:
            group.start_soon(hand_over.run, app, CHOSEN, over)
            offering = Offering(listener, inbox)
            yield offering
            await offering.disconnect()
            over.set()
            group.cancel_scope.cancel()


async def problem(connection: PredecessorConnection, step: Literal["check", "leave"]) -> str:
    return (await connection.ask(step, WAIT_S)).problem


async def test_a_gateway_leaves_only_for_the_process_that_has_its_socket() -> None:
    async with offering() as old:
        first, other = await old.connect(), await old.connect()
        assert await problem(first, "check") == ""
        assert "has not taken" in await problem(first, "leave")
        _, descriptor = await first.take(WAIT_S)
        os.close(descriptor)
        assert "has not taken" in await problem(other, "leave")
        assert old.inbox.messages == []
        assert await problem(first, "leave") == ""
        assert old.inbox.messages == [SuccessorListens()]
        while find_endpoints(purpose_of(old.port)):
            await anyio.lowlevel.checkpoint()


async def test_what_is_offered_is_private_and_goes_with_its_gateway() -> None:
    async with offering() as old:
        connection = await old.connect()
        reply, descriptor = await connection.take(WAIT_S)
        assert (reply.pid, reply.host, reply.port) == (os.getpid(), "127.0.0.1", old.port)
        folders = [(await old.path()).parent, Path(reply.http).parent]
        assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [0o700, 0o700]
        with adopt(descriptor, CHOSEN) as same:
            assert same.getsockname() == old.listener.getsockname()
    assert not any(folder.exists() for folder in folders)


@pytest.mark.parametrize("given_s", [0.0, 60.0], ids=["too late", "in time"])
async def test_one_successor_gets_the_socket(given_s: float) -> None:
    """Until it had its time: it may hang. Then another one gets it, and the first one is no successor any more."""
    async with offering(given_s=given_s) as old:
        first, second = await old.connect(), await old.connect()
        os.close((await first.take(WAIT_S))[1])
        if given_s:
            assert "already" in await problem(second, "check")
            with pytest.raises(NoAnswer, match="already"):
                await second.take(WAIT_S)
            assert await problem(first, "leave") == ""
        else:
            os.close((await second.take(WAIT_S))[1])
            assert "has not taken" in await problem(first, "leave")
            assert await problem(second, "leave") == ""
        assert old.inbox.messages == [SuccessorListens()]


async def test_who_takes_the_socket_and_dies_takes_no_gateway_along() -> None:
    async with offering() as old:
        for _ in range(3):
            connection = await old.connect()
            os.close((await connection.take(WAIT_S))[1])
            await connection.aclose()
            another = await old.connect()
            while await problem(another, "check"):
                await anyio.lowlevel.checkpoint()
            await another.aclose()
        old.listener.close()  # it ends: there is nothing to give any more
        assert "shutting down" in await problem(await old.connect(), "check")
        assert old.inbox.messages == []


@pytest.mark.parametrize("raw", [b"x" * 5000, b"{}\n", b'{"step":"go"}\n', b'{"step":"take","x":1}\n', b"\xff\n"])
async def test_a_line_that_is_no_step_ends_the_connection(raw: bytes) -> None:
    async with offering() as old:
        async with await anyio.connect_unix(await old.path()) as stream:
            await stream.send(raw)
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await stream.receive()
        assert await problem(await old.connect(), "check") == ""


@pytest.mark.parametrize("at_once", [True, False])
async def test_the_bound_of_a_line_is_exact(at_once: bool) -> None:
    longest = b'{"step":"check"}'.ljust(MAX_LINE_BYTES)
    async with offering() as old, await anyio.connect_unix(await old.path()) as stream:
        for part in [longest + b"\n"] if at_once else [longest, b"\n"]:
            await stream.send(part)
            await anyio.wait_all_tasks_blocked()
        assert b"\n" in await stream.receive()
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):  # noqa: PT012  whichever sees the end
            await stream.send(longest + b" \n")
            await stream.receive()


async def test_the_number_of_connections_is_bounded() -> None:
    async with offering() as old:
        kept = [await old.connect() for _ in range(MAX_CONNECTIONS)]
        assert [await problem(each, "check") for each in kept] == [""] * MAX_CONNECTIONS
        with pytest.raises(NoAnswer):
            await problem(await old.connect(), "check")
        await kept[0].aclose()
        while True:
            try:
                assert await problem(await old.connect(), "check") == ""
                break
            except NoAnswer:
                await anyio.lowlevel.checkpoint()


async def test_a_process_of_another_user_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder keeps it out; root's processes alone come so far."""
    async with offering() as old:
        monkeypatch.setattr("gateway.fleet.hand_over.is_of_this_user", lambda _: False)
        with pytest.raises(NoAnswer):
            await problem(await old.connect(), "check")


async def test_an_offer_that_failed_halfway_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with offering() as old:
        connection = await old.connect()
        listens = Listener.listen
        tried: list[Path] = []

        def first_fails(given: Listener, *backlog: int) -> None:
            tried.append(Path(given.getsockname()))
            if len(tried) == 1:
                raise OSError("no descriptor is left")
            listens(given, *backlog)

        monkeypatch.setattr(Listener, "listen", first_fails)
        with pytest.raises(NoAnswer):
            await connection.take(WAIT_S)
        assert not tried[0].parent.exists()
        os.close((await (await old.connect()).take(WAIT_S))[1])
        assert tried[1].exists()


async def test_without_a_folder_for_its_socket_a_gateway_serves_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = anyio.Event()

    def no_folder(*_: object, **__: object) -> None:
        failed.set()
        raise OSError("read-only file system")

    monkeypatch.setattr("gateway.fleet.hand_over.LocalEndpoint", no_folder)
    async with offering() as old:
        await failed.wait()
        assert find_endpoints(purpose_of(old.port)) == []
        assert old.listener.fileno() >= 0


def test_the_peer_of_a_socket_is_of_this_user() -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        assert is_of_this_user(one)
