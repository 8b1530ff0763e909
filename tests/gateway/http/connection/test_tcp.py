"""TCP connections whose client leaves or reads nothing."""

import asyncio
import socket
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from hypercorn.config import Config
from hypercorn.events import RawData

from gateway.http.connection.refusal import RefusalRenderer
from gateway.http.connection.tcp import HttpConnection
from gateway.settings import GatewaySettings

pytestmark = pytest.mark.anyio


class FullWriter:
    """The writer of a client that reads nothing."""

    def __init__(self, socket: socket.socket) -> None:
        self.socket = socket
        self.transport = SimpleNamespace()
        self.written: list[bytes] = []
        self.closed = False

    def get_extra_info(self, _: str) -> socket.socket:
        return self.socket

    def write(self, data: bytes) -> None:
        self.written.append(data)

    async def drain(self) -> None:
        await anyio.sleep_forever()

    def write_eof(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    async def wait_closed(self) -> None:
        pass


async def app(_: Any, __: Any, ___: Any) -> None:
    raise AssertionError("there is no request")


def connection(writer: FullWriter) -> HttpConnection:
    return HttpConnection(
        app,
        Config(),
        GatewaySettings(),
        cast(RefusalRenderer, None),  # nothing is refused
        asyncio.StreamReader(),
        cast(asyncio.StreamWriter, writer),
    )


async def test_writes_that_are_cancelled_while_they_wait_lose_no_bytes() -> None:
    """On HTTP/2 the client could not decode the headers of any further response."""
    with socket.socket() as closed:
        writer = FullWriter(closed)
        made = connection(writer)
        async with anyio.create_task_group() as group:
            for data in (b"a", b"b", b"c"):
                group.start_soon(made.protocol_send, RawData(data=data))
            await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        assert writer.written == [b"a", b"b", b"c"]


async def test_a_client_that_left_before_it_was_served_is_no_failure() -> None:
    with socket.socket() as unconnected:
        writer = FullWriter(unconnected)
        await connection(writer)
        assert writer.closed
