"""A sample of the fuzz test; BATON_FUZZ_STREAMS sets its size, BATON_FUZZ_SEED its streams."""

import os

from tests.attacks.http.client import no_connections
from tests.attacks.http.fuzz import attack, streams
from tests.attacks.server import AttackedServer

COUNT = int(os.environ.get("BATON_FUZZ_STREAMS", "400"))
SEED = int(os.environ.get("BATON_FUZZ_SEED", "0"))


def test_any_bytes_are_answered_or_refused(server: AttackedServer) -> None:
    before = server.rss
    for data, _ in zip(streams(SEED), range(COUNT), strict=False):
        attack(server, data)
    no_connections(server)
    assert server.rss < before + 64 * 2**20
