"""The harness of the attacks itself."""

import pytest

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
