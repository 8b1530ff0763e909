"""Refusals are visible: each is counted, and a flood of them does not fill the log."""

import re

from tests.attacks.server import AttackedServer

FLOOD = 300
OWN_SERVER = True
"""Earlier refusals are counted, and limit what is logged now."""
SECRET = "sk-hunter2"


def responses(server: AttackedServer) -> dict[tuple[str, str, str], float]:
    """The counter of responses, by route, status and reason."""
    text = server.request("GET", "/metrics")[1].decode()
    found = re.findall(r'^baton_http_responses_total\{reason="(.*)",route="(.*)",status="(.*)"\} (.*)$', text, re.M)
    return {(route, status, reason): float(value) for reason, route, status, value in found}


def test_a_flood_of_refusals_is_counted_and_does_not_fill_the_log(server: AttackedServer) -> None:
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
    for number in range(100):
        server.request("GET", f"/v1/models/{number}")
        server.request("GET", f"/v1/streams/cmpl-{number}")
        server.request("POST", f"/admin/workers/{number}/drain", "{}", {"content-type": "application/json"})
        server.request(f"METHOD{number}", f"/{number}")
    assert len(responses(server)) < 12
