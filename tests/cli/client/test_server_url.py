"""URLs of servers on the command line."""

from typing import Any

import httpx
import pytest

from cli.client.server_url import base_url, refused, server_client, server_url, unanswered, url_of
from cli.config.errors import CommandFailed
from cli.config.settings import Settings


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("localhost:8000/v1", "http://localhost:8000"),
        ("https://host/v1/", "https://host"),
        ("https://host/baton/v1", "https://host/baton"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("unix:/run/baton.sock", "http://localhost"),
        ("unix:///run/baton.sock", "http://localhost"),
    ],
)
def test_urls_are_completed_and_normalized(given: str, url: str) -> None:
    assert server_url(given) == url


@pytest.mark.parametrize(
    ("url", "error", "text"),
    [
        ("http://h", httpx.ConnectError("[Errno 111] Connection refused"), "Connection refused; `baton serve` starts"),
        ("https://h", httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] x"), "x; SSL_CERT_FILE names a file"),
        (
            "http://h",
            httpx.RemoteProtocolError("Server disconnected."),
            "disconnected; if it has a certificate",
        ),
        ("https://h", httpx.RemoteProtocolError("Server disconnected."), "disconnected; `baton serve` starts one"),
    ],
)
def test_a_server_that_does_not_answer(url: str, error: Exception, text: str) -> None:
    assert text in str(unanswered(url, error))


@pytest.mark.parametrize(
    "given",
    [
        "",
        "not a url",
        "ftp://x",
        "http://[",
        "http://",
        "http://host:port",
        "http://host:65536",
        "host:0",
        "unix:",
        "unix://",
    ],
)
def test_an_invalid_url_is_refused(given: str) -> None:
    with pytest.raises(CommandFailed, match="--url: "):
        server_url(given)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("fe80::1", "http://[fe80::1]:80"),
        ("example.org", "http://example.org:80"),
    ],
)
def test_a_wildcard_host_becomes_loopback(host: str, url: str) -> None:
    assert base_url(host, 80) == url


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({}, "http://127.0.0.1:8000"),
        ({"tls_cert": "a", "host": "0.0.0.0"}, "https://127.0.0.1:8000"),
        ({"unix_socket": "/run/baton.sock"}, "http://127.0.0.1:8000"),
        ({"unix_socket": "/run/baton.sock", "tcp": False}, "unix:/run/baton.sock"),
    ],
)
def test_the_url_of_a_server_follows_from_its_settings(settings: dict[str, Any], url: str) -> None:
    assert url_of(Settings(**settings)) == url


def test_a_missing_key_is_explained() -> None:
    assert str(refused(401, "a key is needed")).startswith("the server refused (401): a key is needed; set BATON_API")
    assert str(refused(404, "no such worker")) == "the server refused (404): no such worker"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "example.org"])
def test_a_server_on_this_machine_is_reached_without_a_proxy(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with server_client(f"http://{host}:8000", "key", 1.0) as client:
        assert client.trust_env == (host == "example.org")
        assert client.headers["authorization"] == "Bearer key"


@pytest.mark.parametrize(
    ("url", "key", "warns"),
    [
        ("http://example.org:8000", "key", True),
        ("http://10.0.0.1", "key", True),
        ("https://example.org", "key", False),
        ("http://127.0.0.1:8000", "key", False),
        ("http://example.org", "", False),
    ],
)
def test_a_key_that_travels_unencrypted_brings_a_warning(
    url: str, key: str, warns: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    server_client(url, key, 1.0).close()
    printed = capsys.readouterr()
    assert ("Warning: the key is sent to" in printed.err) is warns
    assert printed.out == ""
