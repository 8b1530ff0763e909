"""The harness of the attacks itself."""

import pytest

from tests.attacks.conftest import SharedServers, assert_idle
from tests.attacks.http.client import STREAM
from tests.attacks.server import AttackedServer


def test_a_request_is_answered_and_its_turns_are_measured(server: AttackedServer) -> None:
    body = '{"model": "scripted", "prompt": "hi", "max_tokens": 4}'
    status, _ = server.request("POST", "/v1/completions", body, {"content-type": "application/json"})
    assert status == 200
    assert server.longest_turn.cpu_ms > 0
    assert server.rss > 0
    assert server.connections <= 1


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics"])
def test_probes_are_answered(server: AttackedServer, path: str) -> None:
    assert server.request("GET", path)[0] == 200


def test_attacks_with_equal_options_share_a_server(server: AttackedServer, servers: SharedServers) -> None:
    assert servers.with_options() is server


def test_a_sequence_that_an_attack_leaves_is_noticed(server: AttackedServer) -> None:
    with server.connect() as connection:
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(STREAM)}\r\n\r\n{STREAM}".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        with pytest.raises(AssertionError, match="the attack left 1 sequences"):
            assert_idle(server, within_s=0.0)
