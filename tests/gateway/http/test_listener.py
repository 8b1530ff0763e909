"""A listening socket bounds the connections of one turn of the event loop."""

import socket

import anyio.lowlevel
import pytest

from gateway.http.listener import ACCEPTS_PER_TURN, Listener
from gateway.http.server import listen
from gateway.settings import GatewaySettings

pytestmark = pytest.mark.anyio


def accept_all(listener: Listener) -> list[socket.socket]:
    """Accept as asyncio does in one turn."""
    accepted = []
    try:
        while True:
            accepted.append(listener.accept()[0])
    except BlockingIOError:
        return accepted


async def test_connections_beyond_the_bound_are_accepted_in_the_next_turn() -> None:
    with listen(GatewaySettings(port=0)) as listener:
        address = listener.getsockname()
        clients = [socket.create_connection(address) for _ in range(ACCEPTS_PER_TURN + 1)]
        first = accept_all(listener)
        await anyio.lowlevel.checkpoint()
        rest = accept_all(listener)
        assert (len(first), len(rest)) == (ACCEPTS_PER_TURN, 1)
        for each in (*clients, *first, *rest):
            each.close()
