"""Routes of the gateway itself: what they reveal without a key, and what the chat page loads."""

import http.client
import json
import re

from baton_serve import __version__
from tests.attacks.conftest import SharedServers
from tests.attacks.server import HOST, AttackedServer

OPEN = ("/health", "/health/live", "/health/ready", "/ping", "/v1/health")
PAGE = ("/", "/page/main.js", "/page/style.css", "/page/x")
"""The page is the same on every server, and asks for a key itself."""


def test_health_and_version_answer(server: AttackedServer) -> None:
    assert server.request("GET", "/health") == (200, b'{"status":"ready"}')
    status, body = server.request("GET", "/version")
    assert (status, json.loads(body)) == (200, {"version": __version__})
    for path in ("/health", "/version", "/health/live", "/health/ready", "/"):
        assert server.request("HEAD", path) == (200, b"")
    assert server.request("POST", "/health")[0] == 405


def test_without_the_key_only_health_and_the_files_of_the_page_are_answered(servers: SharedServers) -> None:
    paths = (
        *OPEN,
        *PAGE,
        "/version",
        "/metrics",
        "/admin/live",
        "/v1/models",
        "/admin/workers",
        "/admin/gateway",
        "/favicon.ico",
        "/x",
    )
    closed = (
        "/page",
        "//",
        "/%2fpage/main.js",
        "/health/",
        "/health/live/",
        "//health",
        "/health/../metrics",
        "/%68ealth/../metrics",
        "/health%2flive",
    )
    server = servers.with_options(BATON_API_KEY="k")
    answers = {path: server.request("GET", path)[0] for path in (*paths, *closed)}
    # A path is compared as it was decoded, as the router does.
    assert {path for path, status in answers.items() if status != 401} == {*OPEN, *PAGE, "/health%2flive"}
    assert server.request("GET", "/health")[1] == b'{"status":"ready"}', "it names no model"


def test_the_icon_of_the_page_is_allowed_by_its_policy(server: AttackedServer) -> None:
    connection = http.client.HTTPConnection(HOST, server.port, timeout=60)
    connection.request("GET", "/")
    response = connection.getresponse()
    policy = dict(part.strip().split(" ", 1) for part in response.getheader("content-security-policy", "").split(";"))
    page = response.read().decode()
    connection.close()
    (icon,) = re.findall(r'<link rel="icon" href="([^"]*)"', page)
    assert icon.startswith("data:image/svg+xml,")
    assert policy["img-src"] == "data:"
    assert policy["default-src"] == "'none'"
    loaded = re.findall(r'(?:src|href)="([^"]*)"', page)
    own = [each for each in loaded if each.startswith(("/page/", "#"))]
    assert sorted(loaded) == sorted([icon, *own]), "the page loads nothing from elsewhere"
