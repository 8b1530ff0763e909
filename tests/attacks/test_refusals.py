"""Refusals are visible: each is counted, and a flood of them does not fill the log."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks.conftest import LONGEST_TURN_MS
from tests.attacks.server import AttackedServer, attacked_server

FLOOD = 300
SECRET = "sk-hunter2"


def responses(server: AttackedServer) -> dict[tuple[str, str, str], float]:
    """The counter of responses, by route, status and reason."""
    text = server.request("GET", "/metrics")[1].decode()
    found = re.findall(r'^baton_http_responses_total\{reason="(.*)",route="(.*)",status="(.*)"\} (.*)$', text, re.M)
    return {(route, status, reason): float(value) for reason, route, status, value in found}


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[AttackedServer]:
    """A server that has refused nothing: what it refused before would limit what it logs."""
    with attacked_server(tmp_path) as server:
        yield server
        assert server.process.poll() is None, server.log.read_text()
        assert server.longest_turn.cpu_ms < LONGEST_TURN_MS, server.longest_turn


def test_a_flood_of_refusals_is_counted_and_does_not_fill_the_log(fresh: AttackedServer) -> None:
    server = fresh
    before = server.log.stat().st_size
    for number in range(FLOOD):
        assert server.request("GET", f"/{SECRET}/{number}")[0] == 404
        assert server.request("POST", "/v1/completions", SECRET)[0] == 415
        assert server.request("DELETE", f"/v1/models/{number}")[0] == 405
    counted = responses(server)
    assert counted["other", "404", "not_found"] == FLOOD
    assert counted["/v1/completions", "415", "unsupported_media_type"] == FLOOD
    assert counted["/v1/models/{id}", "405", "method_not_allowed"] == FLOOD
    lines = server.log.read_bytes()[before:]
    assert 60 <= lines.count(b"request_refused") < 3 * FLOOD
    assert SECRET.encode() not in server.log.read_bytes()


def test_paths_statuses_and_methods_of_clients_are_no_labels(server: AttackedServer) -> None:
    before = responses(server)
    for number in range(100):
        server.request("GET", f"/v1/models/{number}")
        server.request("GET", f"/v1/streams/cmpl-{number}")
        server.request("POST", f"/admin/workers/{number}/drain", "{}", {"content-type": "application/json"})
        server.request(f"METHOD{number}", f"/{number}")
    assert len({*responses(server)} - {*before}) < 12
