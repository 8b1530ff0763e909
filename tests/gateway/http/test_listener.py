"""A listening socket bounds the connections of one turn of the event loop."""

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
