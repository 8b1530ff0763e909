"""DNS rebinding: a page of any site uses a server on loopback under a name of its own."""

import json
from pathlib import Path

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, ResponseReceived, StreamReset

from tests.attacks.conftest import SharedServers
from tests.attacks.server import AttackedServer, attacked_server

JSON = {"content-type": "application/json"}
COMPLETION = '{"model": "scripted", "prompt": "hi", "max_tokens": 2}'
ROUTES = [
    ("GET", "/v1/models", ""),
    ("POST", "/v1/completions", COMPLETION),
    ("GET", "/v1/streams/cmpl-0", ""),
    ("DELETE", "/v1/streams/cmpl-0", ""),
    ("GET", "/metrics", ""),
    ("GET", "/admin/workers", ""),
    ("POST", "/admin/restart", "{}"),
    ("GET", "/admin/gateway", ""),
    ("GET", "/", ""),
    ("GET", "/unknown", ""),
]
FOREIGN = [
    "evil.example",
    "evil.example:{port}",
    "EVIL.EXAMPLE.",
    "localhost.evil.example",
    "evil-localhost",
    "127.0.0.1.evil.example",
    "127.1",
    "2130706433",
    "0x7f.1",
    "localhost@evil.example",
    "evil.example@localhost",
    "localhost, evil.example",
    "localhost:80:80",
    "[::1",
    "[evil.example]",
    "xn--lcalhost-50a",
    "127.0.0.1/",
]
OWN = ["localhost", "LOCALHOST:{port}", "localhost.", "app.localhost", "127.0.0.1:{port}", "127.9.9.9", "[::1]:{port}"]


def raw(server: AttackedServer, request: str) -> tuple[int, bytes]:
    """The status and the body of the answer to a request that is sent as it is."""
    with server.connect() as connection:
        connection.sendall(request.encode())
        answer = b""
        while part := connection.recv(65536):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def get(server: AttackedServer, host: str, target: str = "/v1/models") -> tuple[int, bytes]:
    host = host.replace("{port}", str(server.port))
    return raw(server, f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")


def test_no_route_answers_under_a_foreign_name(server: AttackedServer) -> None:
    answers = {
        f"{method} {path}": server.request(method, path, body, {"host": f"evil.example:{server.port}"} | JSON)
        for method, path, body in ROUTES
    }
    assert {route: status for route, (status, _) in answers.items()} == dict.fromkeys(answers, 403)
    for _, body in answers.values():
        error = json.loads(body)["error"]
        assert error["code"] == "host_not_allowed"
        assert "--allowed-host" in error["message"]
        assert "w0" not in error["message"]


def test_a_name_that_only_resembles_an_own_one_is_refused(server: AttackedServer) -> None:
    answered = {host: get(server, host)[0] for host in FOREIGN}
    assert {host: status for host, status in answered.items() if status not in (400, 403)} == {}


def test_own_names_and_addresses_are_served(server: AttackedServer) -> None:
    hosts = [*OWN, "10.1.2.3:{port}", "192.168.0.7", "[2001:db8::1]"]
    assert {host: get(server, host)[0] for host in hosts} == dict.fromkeys(hosts, 200)
    assert raw(server, "GET /v1/models HTTP/1.0\r\n\r\n")[0] == 200, "no browser sends this"


def test_probes_are_answered_under_any_name(server: AttackedServer) -> None:
    paths = ["/health/live", "/health/ready"]
    assert [get(server, "pod-7.example", path)[0] for path in paths] == [200, 200]


def test_the_host_of_the_target_reaches_no_route(server: AttackedServer) -> None:
    for host in ("localhost", "evil.example"):
        assert get(server, host, "http://evil.example/v1/models")[0] in (400, 403, 404)
    two = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    assert raw(server, two)[0] == 400


def test_names_can_be_allowed(tmp_path: Path) -> None:
    words = ("--allowed-host", "llm.example.org", "--allowed-host", "*.lan.example")
    with attacked_server(tmp_path, *words) as server:
        hosts = {
            "llm.example.org": 200,
            "LLM.example.org.:{port}": 200,
            "a.b.lan.example": 200,
            "lan.example": 403,
            "evil-lan.example": 403,
            "x.llm.example.org": 403,
            "localhost": 200,
        }
        assert {host: get(server, host)[0] for host in hosts} == hosts


def test_with_a_key_names_are_checked_only_if_they_are_listed(servers: SharedServers, tmp_path: Path) -> None:
    key = "Authorization: Bearer k\r\nConnection: close\r\n\r\n"
    evil = f"GET /v1/models HTTP/1.1\r\nHost: llm.example.org\r\n{key}"
    assert raw(servers.with_options(BATON_API_KEY="k"), evil)[0] == 200
    with attacked_server(tmp_path, BATON_API_KEY="k", BATON_ALLOWED_HOSTS="a.example, b.example") as server:
        assert raw(server, evil)[0] == 403
        assert raw(server, evil.replace("llm.example.org", "b.example"))[0] == 200


def ask_http2(server: AttackedServer, authority: str, host: str) -> int | None:
    """The status of the answer; None if the connection ends with an error."""
    headers = [(":method", "GET"), (":scheme", "http"), (":path", "/v1/models")]
    headers += [(name, value) for name, value in ((":authority", authority), ("host", host)) if value]
    client = H2Connection(H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False))
    client.initiate_connection()
    client.send_headers(1, headers, end_stream=True)
    with server.connect() as connection:
        connection.sendall(client.data_to_send())
        while part := connection.recv(65536):
            for event in client.receive_data(part):
                if isinstance(event, ResponseReceived):
                    return int(dict(event.headers)[b":status"])
                if isinstance(event, StreamReset | ConnectionTerminated):
                    return None
    return None


def test_on_http2_the_authority_is_the_host(server: AttackedServer) -> None:
    """An authority and a host that contradict each other are an error (RFC 9113, 8.3.1)."""
    statuses = {
        ("localhost", ""): 200,
        ("evil.example", ""): 403,
        ("evil.example", "localhost"): None,
        ("localhost", "evil.example"): None,
        ("", "evil.example"): 403,
        ("", "localhost"): 200,
    }
    assert {names: ask_http2(server, *names) for names in statuses} == statuses
