"""Thousands of requests at once: queued up to the bounds, refused beyond, and ended together.

They come in 100 streams of each of many HTTP/2 connections, or as 64 choices of each request. `ATTACK_COUNT` is their
number; the nightly run has 10,000.
"""

import http.client
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.attacks.answers.posts import COMPLETIONS, JSON, completion, peak_rss
from tests.attacks.answers.probing import Probing
from tests.attacks.conftest import LONGEST_TURN_MS
from tests.attacks.http.client import Http2Client
from tests.attacks.server import HOST, AttackedServer, attacked_server

COUNT = int(os.environ.get("ATTACK_COUNT", "10000" if os.environ.get("EXHAUSTIVE_TESTS") == "1" else "4000"))
REFUSED = COUNT // 5
"""Requests for a server that has no room for them."""
STREAMS = 100
"""The bound of one HTTP/2 connection."""
CHOICES = 64
"""The bound of one request."""
MIB = 1 << 20
OWN_SERVER = True
"""It is overloaded."""
ROOMY = (
    *("--max-queue", "20000", "--max-batch-size", "2"),
    *("--max-streams-per-worker", "20000", "--max-waiting-streams", "20000"),
)


class Crowd:
    """Many clients, each with up to `STREAMS` requests on a connection of its own."""

    def __init__(self, server: AttackedServer, request: str) -> None:
        self._server = server
        self._request = request.encode()
        self._clients: list[Http2Client] = []

    def send(self, count: int) -> None:
        for start in range(0, count, STREAMS):
            client = Http2Client(self._server)
            self._clients.append(client)
            for _ in range(start, min(start + STREAMS, count)):
                client.ask("POST", COMPLETIONS, self._request)

    def answers(self) -> Counter[int]:
        """Wait until each request is answered. The statuses."""
        found: Counter[int] = Counter()
        for client in self._clients:
            asked = range(1, client.h2.highest_outbound_stream_id + 1, 2)
            client.until(lambda asked=asked, client=client: client.ended.issuperset(asked))  # type: ignore[misc]
            found.update(client.statuses[stream] for stream in asked)
        return found

    def leave(self) -> None:
        for client in self._clients:
            client.socket.close()


@pytest.fixture
def roomy(tmp_path: Path) -> Iterator[AttackedServer]:
    """A server whose bounds take all of them, and whose worker runs two at a time."""
    with attacked_server(tmp_path, *ROOMY) as server:
        yield server
        assert server.process.poll() is None, server.log.read_text()
        assert server.longest_turn.cpu_ms < LONGEST_TURN_MS, server.longest_turn


def test_requests_are_queued_and_cancelled_together(roomy: AttackedServer) -> None:
    before = roomy.rss
    crowd = Crowd(roomy, completion(max_tokens=4000))
    with Probing(roomy) as probing:
        crowd.send(COUNT)
        while roomy.live_sequences < COUNT * 0.9:  # some end meanwhile
            time.sleep(0.05)
        each = (roomy.rss - before) / COUNT
        crowd.leave()
        while roomy.live_sequences:
            time.sleep(0.05)
    assert probing.failed == 0
    assert each < 100_000, "bytes of each queued request and its stream"
    assert json.loads(roomy.request("POST", COMPLETIONS, completion(max_tokens=3), JSON)[1])["choices"]


def test_the_sequences_of_a_few_requests_are_queued_and_cancelled_together(roomy: AttackedServer) -> None:
    crowd = Crowd(roomy, completion(max_tokens=4000, n=CHOICES))
    with Probing(roomy) as probing:
        crowd.send(COUNT // CHOICES)
        while roomy.live_sequences < COUNT * 0.9:
            time.sleep(0.05)
        crowd.leave()
        while roomy.live_sequences:
            time.sleep(0.05)
    assert probing.failed == 0


def test_requests_over_the_bounds_are_refused(server: AttackedServer) -> None:
    """A worker holds 8 running and 256 waiting sequences by default."""
    crowd = Crowd(server, completion(max_tokens=1000))
    with Probing(server) as probing:
        crowd.send(REFUSED)
        statuses = crowd.answers()
    crowd.leave()
    assert set(statuses) == {200, 429}
    assert statuses.total() == REFUSED
    assert statuses[429] > REFUSED / 4
    assert probing.failed == 0
    assert peak_rss(server) < 512 * MIB


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=lambda how: how.name)
def test_the_sequences_of_a_worker_that_dies_are_queued_again(roomy: AttackedServer, how: signal.Signals) -> None:
    crowd = Crowd(roomy, completion(max_tokens=4000, n=CHOICES))
    with Probing(roomy) as probing:
        crowd.send(COUNT // CHOICES)
        while (before := roomy.live_sequences) < COUNT * 0.9:
            time.sleep(0.05)
        (worker,) = psutil.Process(roomy.process.pid).children()
        worker.send_signal(how)
        worker.wait()
        while roomy.live_sequences < before - CHOICES:
            time.sleep(0.05)
        crowd.leave()
        while roomy.live_sequences:
            time.sleep(0.05)
    assert probing.failed == 0
    assert roomy.request("POST", COMPLETIONS, completion(max_tokens=3), JSON)[0] == 200


def test_a_server_that_ends_answers_all_that_wait(tmp_path: Path) -> None:
    body = completion(max_tokens=4000, n=CHOICES)
    with attacked_server(tmp_path, *ROOMY, "--shutdown-grace-s", "0.5") as server:
        clients = [http.client.HTTPConnection(HOST, server.port, timeout=60) for _ in range(COUNT // CHOICES)]
        for client in clients:
            client.request("POST", COMPLETIONS, body, JSON)
        while server.live_sequences < COUNT * 0.9:
            time.sleep(0.05)
        server.process.terminate()
        answers = [client.getresponse() for client in clients]
        codes = Counter(json.loads(answer.read())["error"]["code"] for answer in answers if answer.status != 200)
        for client in clients:
            client.close()
        assert server.process.wait(30) == 0
        turn = server.longest_turn
    assert {answer.status for answer in answers} <= {200, 503}
    assert set(codes) == {"draining"}
    assert turn.cpu_ms < LONGEST_TURN_MS, turn
