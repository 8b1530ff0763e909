"""The client of the administration routes, with scripted responses."""

from typing import Any

import httpx
import pytest

from cli.client.administration import Administration
from cli.config.errors import CommandFailed
from cli.config.settings import Settings


def operation(outcome: str, *lines: str, number: int = 1) -> dict[str, Any]:
    return {"operation": {"number": number, "name": "rolling restart", "outcome": outcome, "lines": list(lines)}}


def server(*answers: dict[str, Any] | httpx.Response) -> tuple[Administration, list[httpx.Request]]:
    """Return a client whose server gives these answers in turn."""
    asked: list[httpx.Request] = []
    left = iter(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        value = next(left)
        return value if isinstance(value, httpx.Response) else httpx.Response(200, json=value)

    client = httpx.Client(base_url="http://server", transport=httpx.MockTransport(answer))
    return Administration(client, sleep=lambda _: None), asked


def test_an_operation_is_followed_to_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    one, asked = server(operation("running"), operation("running", "w0"), operation("done", "w0", "w1"))
    one.operate("/admin/restart?rolling", 7.5, model="")
    assert capsys.readouterr().out.splitlines() == ["w0", "w1"], "each line once"
    assert [(request.method, request.url.raw_path) for request in asked] == [
        ("POST", b"/admin/restart?rolling"),
        ("GET", b"/admin/operation"),
        ("GET", b"/admin/operation"),
    ]
    assert asked[0].read() == b'{"grace_s":7.5}'


def test_empty_fields_are_not_sent() -> None:
    one, asked = server(operation("done"))
    one.operate("/admin/reload", None, model="", checkpoint="/models/new")
    assert asked[0].read() == b'{"checkpoint":"/models/new"}'


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([operation("failed", "w0 did not become ready")], "rolling restart failed"),
        ([operation("running"), operation("done", number=2)], "another operation has begun"),
        ([httpx.Response(409, json={"error": {"message": "it is under way"}})], r"refused \(409\): it is under way"),
        ([httpx.Response(502, text="bad gateway")], "did not answer as a Baton server does"),
        ([httpx.Response(200, json=[])], "did not answer as a Baton server does"),
    ],
    ids=["failed", "another", "refused", "proxy", "another-server"],
)
def test_every_failure_is_a_command_error(answers: list[Any], words: str) -> None:
    one, _ = server(*answers)
    with pytest.raises(CommandFailed, match=words):
        one.operate("/admin/restart?rolling", None)


def test_an_unreachable_server_is_a_command_error() -> None:
    with (
        Administration.of("http://127.0.0.1:1", Settings()) as client,
        pytest.raises(CommandFailed, match=r"no server answers at http://127\.0\.0\.1:1: .*`baton serve` starts one"),
    ):
        client.get("/admin/workers")


@pytest.mark.parametrize(
    ("api_key", "admin_key", "sent"),
    [("", "", None), ("a", "", "Bearer a"), ("a", "b", "Bearer b")],
    ids=["none", "api", "admin"],
)
def test_the_admin_key_takes_precedence_over_the_api_key(api_key: str, admin_key: str, sent: str | None) -> None:
    with Administration.of("http://server/", Settings(api_key=api_key, admin_key=admin_key)) as client:
        assert client._client.headers.get("authorization") == sent
