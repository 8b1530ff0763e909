"""A listening socket bounds the connections of one turn of the event loop, and loses none when it stops."""

import asyncio
import socket
from pathlib import Path

import anyio.lowlevel
import pytest
import trustme

from gateway.http.listener import ACCEPTS_PER_TURN, ENCRYPTED_ACCEPTS_PER_TURN, Listener
from gateway.http.server import listen
from gateway.http.tls import Tls
from gateway.settings import GatewaySettings
from tests.gateway.harness.certificates import write_certificate
from tests.gateway.harness.serving import serving

pytestmark = pytest.mark.anyio


def accept_all(listener: Listener) -> list[socket.socket]:
    """Accept as asyncio does in one turn."""
    accepted = []
    try:
        while True:
            accepted.append(listener.accept()[0])
    except BlockingIOError:
        return accepted


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    return Tls(GatewaySettings(**write_certificate(tmp_path, trustme.CA()).settings))


@pytest.mark.parametrize(("encrypted", "bound"), [(False, ACCEPTS_PER_TURN), (True, ENCRYPTED_ACCEPTS_PER_TURN)])
async def test_connections_beyond_the_bound_are_accepted_in_the_next_turn(
    tls: Tls, encrypted: bool, bound: int
) -> None:
    with listen(GatewaySettings(port=0), tls if encrypted else None) as listener:
        address = listener.getsockname()
        clients = [socket.create_connection(address) for _ in range(bound + 1)]
        first = accept_all(listener)
        await anyio.lowlevel.checkpoint()
        rest = accept_all(listener)
        assert (len(first), len(rest)) == (bound, 1)
        for each in (*clients, *first, *rest):
            each.close()


async def test_a_connection_accepted_in_the_turn_of_the_stop_is_served() -> None:
    async with serving() as served:
        assert (await served.client.get("/health/live")).status_code == 200  # the server has started
        address = served.listener.getsockname()
        client = socket.create_connection(address)
        client.sendall(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        # A turn of the loop runs its timers after what has become readable.
        asyncio.get_running_loop().call_later(0, served.listener.stop)
        client.settimeout(10)
        answer = await anyio.to_thread.run_sync(client.recv, 4096)
        assert answer.startswith(b"HTTP/1.1 200 ")
        client.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
