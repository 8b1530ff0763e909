"""Links whose bytes come one at a time: none of them is a sign of life, at either end, before or after the join."""

from dataclasses import replace
from pathlib import Path

import pytest

from actors.transport import zmq_socket
from bench.networks.byte_link import ByteLink
from protocol.codec import encode
from tests.actors.join.entrance import GENEROUS, HELLO, Client, entrance, joined

pytestmark = pytest.mark.anyio

PAUSE_S = 0.02
"""After each byte. A handshake of some 500 bytes then takes 10 s, and an answer to a ping 1 s."""


@pytest.mark.parametrize(
    ("to_worker", "to_gateway"), [(True, False), (False, True), (True, True)], ids=["gateway", "worker", "both"]
)
async def test_a_handshake_that_drips_ends_in_time_and_disturbs_nobody(
    to_worker: bool, to_gateway: bool, tmp_path: Path
) -> None:
    async with entrance(tmp_path, replace(GENEROUS, hello_s=0.3)) as door, ByteLink(door.port) as link, joined(door):
        link.drip(PAUSE_S, to_worker=to_worker, to_gateway=to_gateway)
        client = Client(f"tcp://127.0.0.1:{link.port}", door.keys())
        try:
            await door.until(lambda: bool(client.lost) and door.rejected() == {"silent": 1})
        finally:
            client.link.close(0)
        assert len(link.said[0]) > 0
        door.requests[0].link.send_nowait([encode(HELLO)])
        assert (len(door.requests), door.lost) == (1, [])


async def test_a_worker_leaves_a_gateway_whose_answers_drip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_socket, "HEARTBEAT_MS", 100)
    monkeypatch.setattr(zmq_socket, "HEARTBEAT_TIMEOUT_MS", 400)
    async with entrance(tmp_path) as door, ByteLink(door.port) as link:
        client = Client(f"tcp://127.0.0.1:{link.port}", door.keys())
        try:
            await client.link.send([encode(HELLO)])
            await door.until(lambda: bool(client.received))
            link.drip(PAUSE_S, to_gateway=False)
            await door.until(lambda: bool(client.lost))
            assert client.lost == ["the peer's connection ended"]
        finally:
            client.link.close(0)
