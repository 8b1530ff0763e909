"""Pages of other origins: what a browser lets them send and read."""

import http.client
import json
from pathlib import Path
from typing import NamedTuple

from tests.attacks.server import HOST, AttackedServer, attacked_server

APP = "https://app.example"
COMPLETION = '{"model": "scripted", "prompt": "hi", "max_tokens": 2}'
STREAM = '{"model": "scripted", "prompt": "hi", "max_tokens": 2, "stream": true, "stream_options": {"resume_s": 5}}'
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-os",
}


class Answer(NamedTuple):
    """The part of a response that a browser sees."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def cors(self) -> dict[str, str]:
        """The headers that decide what a page may read."""
        return {name: value for name, value in self.headers.items() if name.startswith("access-control-")}


def ask(server: AttackedServer, method: str, path: str, body: str = "", **headers: str) -> Answer:
    connection = http.client.HTTPConnection(HOST, server.port, timeout=60)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.request(method, path, body or None, {"content-type": "application/json"} | given)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, response.read())
    finally:
        connection.close()


def preflight(server: AttackedServer, path: str, origin: str, **more: str) -> Answer:
    named = {name.replace("-", "_"): value for name, value in PREFLIGHT.items()}
    return ask(server, "OPTIONS", path, origin=origin, **named, **more)


def test_by_default_no_page_of_another_origin_changes_or_reads_anything(server: AttackedServer) -> None:
    for path in ("/v1/completions", "/admin/restart", "/v1/streams/x"):
        answer = preflight(server, path, APP)
        assert (answer.status >= 400, answer.cors) == (True, {})
    others = [
        {"origin": APP, "sec_fetch_site": "cross-site"},
        {"origin": APP},
        {"origin": "null"},
        {"origin": "http://localhost:1"},
        {"origin": f"http://localhost:{server.port}", "sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site", "origin": f"http://localhost:{server.port + 1}"},
    ]
    for other in others:
        for method, path in (("POST", "/v1/completions"), ("POST", "/admin/restart"), ("DELETE", "/v1/streams/x")):
            answer = ask(server, method, path, COMPLETION, **other)
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (403, "origin_not_allowed"), other
            assert answer.cors == {}
    assert ask(server, "GET", "/v1/models", origin=APP).cors == {}


def test_the_own_page_and_programs_are_served(server: AttackedServer) -> None:
    own = {"host": f"localhost:{server.port}", "origin": f"http://localhost:{server.port}"}
    for headers in (own, own | {"sec_fetch_site": "same-origin"}, {"sec_fetch_site": "none"}, {}):
        assert ask(server, "POST", "/v1/completions", COMPLETION, **headers).status == 200


def test_an_allowed_app_reads_answers_errors_and_streams(tmp_path: Path) -> None:
    with attacked_server(tmp_path, "--cors-origin", APP, BATON_API_KEY="k") as server:
        answer = preflight(server, "/v1/chat/completions", APP, access_control_request_private_network="true")
        assert (answer.status, answer.body) == (204, b"")
        assert answer.cors == {
            "access-control-allow-origin": APP,
            "access-control-allow-methods": "GET, POST, DELETE",
            "access-control-allow-headers": "authorization,content-type,x-stainless-os",
            "access-control-max-age": "600",
            "access-control-allow-private-network": "true",
        }
        key = {"origin": APP, "authorization": "Bearer k"}
        answers = {
            "models": ask(server, "GET", "/v1/models", **key),
            "whole": ask(server, "POST", "/v1/completions", COMPLETION, **key),
            "stream": ask(server, "POST", "/v1/completions", STREAM, **key),
            "no key": ask(server, "GET", "/v1/models", origin=APP),
            "bad body": ask(server, "POST", "/v1/completions", "{", **key),
            "no route": ask(server, "GET", "/v1/x", **key),
            "no method": ask(server, "PUT", "/v1/models", **key),
            "no stream": ask(server, "GET", "/v1/streams/cmpl-0", **key),
            "headers": ask(server, "GET", "/v1/models", x="x" * 32 * 1024, **key),
        }
        assert {name: each.status for name, each in answers.items()} == {
            "models": 200,
            "whole": 200,
            "stream": 200,
            "no key": 401,
            "bad body": 400,
            "no route": 404,
            "no method": 405,
            "no stream": 404,
            "headers": 431,
        }
        for name, each in answers.items():
            assert each.cors["access-control-allow-origin"] == APP, name
            exposed = each.cors["access-control-expose-headers"].split(", ")
            assert {"x-request-id", "x-stream-id", "retry-after"} <= set(exposed)
            assert "access-control-allow-credentials" not in each.cors
            assert "Origin" in each.headers["vary"]
        assert answers["stream"].headers["x-stream-id"]
        assert b"data: [DONE]" in answers["stream"].body
        assert "Origin" in ask(server, "GET", "/v1/models", authorization="Bearer k").headers["vary"]


def test_an_origin_that_only_resembles_an_allowed_one_gets_nothing(tmp_path: Path) -> None:
    resembling = ("https://app.example.evil", "http://app.example", "https://app.example:444", "null")
    with attacked_server(tmp_path, "--cors-origin", APP) as server:
        for origin in resembling:
            answer = preflight(server, "/v1/completions", origin)
            assert (answer.status, answer.cors) == (403, {}), origin
            answer = ask(server, "POST", "/v1/completions", COMPLETION, origin=origin)
            assert (answer.status, answer.cors) == (403, {}), origin


def test_an_allowed_app_does_not_administer(tmp_path: Path) -> None:
    with attacked_server(tmp_path, "--cors-origin", APP) as server:
        answer = preflight(server, "/admin/restart", APP)
        assert (answer.status, answer.cors) == (403, {})
        answer = ask(server, "POST", "/admin/restart", "{}", origin=APP, sec_fetch_site="cross-site")
        assert (answer.status, answer.cors) == (403, {})
        assert ask(server, "GET", "/admin/workers", origin=APP).cors == {}


def test_any_origin_is_allowed_only_on_request_and_without_credentials(tmp_path: Path) -> None:
    with attacked_server(tmp_path, "--cors-origin", "*") as server:
        answer = preflight(server, "/v1/completions", APP, access_control_request_private_network="true")
        assert answer.cors["access-control-allow-origin"] == "*"
        assert not {"access-control-allow-credentials", "access-control-allow-private-network"} & answer.cors.keys()
        assert ask(server, "POST", "/v1/completions", COMPLETION, origin=APP).cors["access-control-allow-origin"] == "*"
        assert "open_to_all_pages" in server.log.read_text()


def test_a_cached_password_of_a_browser_is_not_used_by_other_pages(tmp_path: Path) -> None:
    """The chat page is opened with the key as a password, which the browser then sends along by itself."""
    with attacked_server(tmp_path, BATON_API_KEY="k") as server:
        cached = {"authorization": "Basic Oms=", "origin": APP, "sec_fetch_site": "cross-site"}
        assert ask(server, "POST", "/v1/completions", COMPLETION, **cached).status == 403
        assert ask(server, "POST", "/v1/completions", COMPLETION, authorization="Basic Oms=").status == 200
        explicit = {"authorization": "Bearer k", "origin": "chrome-extension://abc"}
        assert ask(server, "POST", "/v1/completions", COMPLETION, **explicit).status == 200
