"""Thousands of requests at once: queued up to the bounds, refused beyond, and cancelled together.

`ATTACK_COUNT=10000 pytest tests/attacks/answers/test_queued_requests.py` sends more of them, on a machine with cores to
spare and 12,000 file descriptors.
"""

import json
import os
import selectors
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks.answers.posts import COMPLETIONS, JSON, completion, peak_rss
from tests.attacks.answers.probing import Probing
from tests.attacks.conftest import LONGEST_TURN_MS
from tests.attacks.server import HOST, AttackedServer, attacked_server

COUNT = int(os.environ.get("ATTACK_COUNT", "2000"))
MIB = 1 << 20


def raw_request(**fields: object) -> bytes:
    """The bytes of one request."""
    body = completion(**fields).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


class Crowd:
    """Many clients, each with one request on a connection of its own."""

    def __init__(self, server: AttackedServer, request: bytes) -> None:
        self._server = server
        self._request = request
        self._sockets: list[socket.socket] = []

    def send(self, count: int) -> None:
        for _ in range(count):
            connection = self._server.connect()
            connection.sendall(self._request)
            self._sockets.append(connection)

    def statuses(self) -> Counter[int]:
        """The statuses of those that were answered so far."""
        found: Counter[int] = Counter()
        with selectors.DefaultSelector() as selector:
            for connection in self._sockets:
                selector.register(connection, selectors.EVENT_READ)
            for key, _ in selector.select(0):
                peeked = key.fileobj.recv(12, socket.MSG_PEEK)  # type: ignore[union-attr]
                found[int(peeked[9:12])] += 1
        return found

    def leave(self) -> None:
        for connection in self._sockets:
            connection.close()


@pytest.fixture
def roomy(tmp_path: Path) -> Iterator[AttackedServer]:
    """A server whose bounds take all of them, and whose worker runs two at a time."""
    words = ["--max-queue", "20000", "--max-streams-per-worker", "20000", "--max-connections", "15000"]
    with attacked_server(tmp_path, *words, "--max-batch-size", "2") as server:
        yield server
        assert server.process.poll() is None, server.log.read_text()
        assert server.longest_turn.cpu_ms < LONGEST_TURN_MS, server.longest_turn


def live(server: AttackedServer) -> int:
    """Sequences that the gateway has open."""
    lines = server.request("GET", "/metrics")[1].decode().splitlines()
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith("baton_live_sequences{"))


def test_requests_are_queued_and_cancelled_together(roomy: AttackedServer) -> None:
    before = roomy.rss
    crowd = Crowd(roomy, raw_request(max_tokens=4000))
    with Probing(roomy) as probing:
        crowd.send(COUNT)
        while live(roomy) < COUNT * 0.9:  # some end meanwhile
            time.sleep(0.05)
        each = (roomy.rss - before) / COUNT
        crowd.leave()
        while live(roomy):
            time.sleep(0.05)
    assert probing.failed == 0
    assert each < 100_000, "bytes of each queued request and its connection"
    assert json.loads(roomy.request("POST", COMPLETIONS, completion(max_tokens=3), JSON)[1])["choices"]


def test_the_sequences_of_a_few_requests_are_queued_and_cancelled_together(roomy: AttackedServer) -> None:
    crowd = Crowd(roomy, raw_request(max_tokens=4000, n=64))
    with Probing(roomy) as probing:
        crowd.send(COUNT // 64)
        while live(roomy) < COUNT * 0.9:
            time.sleep(0.05)
        crowd.leave()
        while live(roomy):
            time.sleep(0.05)
    assert probing.failed == 0


def test_requests_over_the_bounds_are_refused(server: AttackedServer) -> None:
    """A worker holds 8 running and 256 waiting sequences by default."""
    crowd = Crowd(server, raw_request(max_tokens=1000))
    with Probing(server) as probing:
        crowd.send(COUNT)
        while live(server) or sum(crowd.statuses().values()) < COUNT:
            time.sleep(0.05)
    statuses = crowd.statuses()
    crowd.leave()
    assert set(statuses) == {200, 429}
    assert statuses[429] > COUNT / 4
    assert probing.failed == 0
    assert peak_rss(server) < 512 * MIB
