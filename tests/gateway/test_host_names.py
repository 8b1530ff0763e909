"""Host names, patterns and origins, as settings and requests have them."""

import pytest

from gateway.host_names import is_address, is_same_origin, matches, parse_host, parse_origin, parse_pattern
from gateway.settings import GatewaySettings, GatewaySettingsError


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("a.Example", ("a.example", "")),
        ("a.example.:80", ("a.example", "80")),
        ("a.example:", ("a.example", "")),
        ("[::1]:8000", ("[::1]", "8000")),
        ("", None),
        ("a b", None),
        ("a:123456", None),
        ("user@a", None),
        ("a/", None),
        ("[::1", None),
        ("::1", None),
        ("b\u00fccher.example", None),
    ],
)
def test_a_host_has_a_name_and_a_port(text: str, parsed: tuple[str, str] | None) -> None:
    assert parse_host(text) == parsed


@pytest.mark.parametrize(
    ("host", "is_one"),
    [("127.0.0.1", True), ("[::1]", True), ("127.1", False), ("1.2.3.4.example", False), ("a", False)],
)
def test_an_address_is_no_name(host: str, is_one: bool) -> None:
    assert is_address(host) is is_one


@pytest.mark.parametrize(
    ("pattern", "host", "allowed"),
    [
        ("a.example", "a.example", True),
        ("a.example", "b.a.example", False),
        ("*.a.example", "b.a.example", True),
        ("*.a.example", "c.b.a.example", True),
        ("*.a.example", "a.example", False),
        ("*.a.example", ".a.example", False),
        ("*.a.example", "ba.example", False),
        ("*", "b.example", True),
        ("A.Example.", "a.example", True),
        ("b\u00fccher.example", "xn--bcher-kva.example", True),
    ],
)
def test_a_pattern_allows_names(pattern: str, host: str, allowed: bool) -> None:
    assert matches(host, parse_pattern(pattern)) is allowed


@pytest.mark.parametrize("text", ["", "a:80", "http://a", "a.*", "*a", "*.", "a b", "a/b", "-a", "**"])
def test_what_is_not_a_pattern_is_refused_by_the_name_of_its_setting(text: str) -> None:
    with pytest.raises(GatewaySettingsError, match=r"^allowed_hosts: .* is not a host name"):
        GatewaySettings(allowed_hosts=("ok.example", text))


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://App.example/", "https://app.example"),
        ("https://app.example:443", "https://app.example"),
        ("http://app.example:443", "http://app.example:443"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("chrome-extension://abc", "chrome-extension://abc"),
        ("https://b\u00fccher.example", "https://xn--bcher-kva.example"),
        ("*", "*"),
    ],
)
def test_an_origin_is_as_browsers_send_it(text: str, origin: str) -> None:
    assert parse_origin(text) == origin


@pytest.mark.parametrize("text", ["", "null", "app.example", "https://", "https://a/b", "https://u@a", "https://a b"])
def test_what_is_not_an_origin_is_refused_by_the_name_of_its_setting(text: str) -> None:
    with pytest.raises(GatewaySettingsError, match=r"^cors_origins: .* is not an origin"):
        GatewaySettings(cors_origins=(text,))


@pytest.mark.parametrize("setting", ["allowed_hosts", "cors_origins"])
def test_the_number_of_names_is_bounded(setting: str) -> None:
    with pytest.raises(GatewaySettingsError, match="256 is the most"):
        GatewaySettings(**{setting: ("*",) * 257})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("origin", "host", "same"),
    [
        ("http://localhost:8000", "localhost:8000", True),
        ("http://localhost:8001", "localhost:8000", False),
        ("http://localhost", "localhost:8000", False),
        ("https://LLM.example", "llm.example", True),
        ("https://llm.example:8443", "llm.example", True),
        ("https://llm.example", "llm.example:443", True),
        ("null", "localhost", False),
        ("https://evil.example", "llm.example", False),
        ("https://llm.example", "", False),
    ],
)
def test_a_page_is_of_the_same_origin(origin: str, host: str, same: bool) -> None:
    assert is_same_origin(origin, host) is same
