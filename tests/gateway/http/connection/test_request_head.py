"""Checks of a request's head."""

import pytest

from gateway.http.connection.refusal import HttpRefusal
from gateway.http.connection.request_head import http1_request, http2_request

HOST = (b"host", b"localhost:8000")


@pytest.mark.parametrize(
    ("target", "host", "path"),
    [
        (b"/a?b#c", b"localhost:8000", b"/a?b#c"),
        (b"//evil.example/a", b"localhost:8000", b"//evil.example/a"),
        (b"http://other:1/a", b"other:1", b"/a"),
        (b"HTTPS://other", b"other", b"/"),
        (b"http://other?x", b"other", b"/?x"),
    ],
)
def test_the_target_names_the_path_and_maybe_the_host(target: bytes, host: bytes, path: bytes) -> None:
    found, headers = http1_request(b"GET", target, b"1.1", [(b"a", b"b"), HOST])
    assert (found, dict(headers)) == (path, {b"host": host, b"a": b"b"})


@pytest.mark.parametrize("target", [b"a", b"*", b"http:///a", b"http://u@h/", b"ftp://h/", b"h:1", b"http://a b/"])
def test_another_target_is_refused(target: bytes) -> None:
    with pytest.raises(HttpRefusal):
        http1_request(b"GET", target, b"1.1", [HOST])


def test_a_star_is_the_target_of_options() -> None:
    assert http1_request(b"OPTIONS", b"*", b"1.1", [HOST])[0] == b"*"


PSEUDO = {b":method": b"GET", b":path": b"/a", b":scheme": b"http", b":authority": b"a"}


def test_the_method_and_the_path_of_http2() -> None:
    assert http2_request(list(PSEUDO.items())) == (b"GET", b"/a")
    assert http2_request([*PSEUDO.items(), (b"host", b"a")]) == (b"GET", b"/a")


@pytest.mark.parametrize(
    "changed",
    [
        {b":method": b"CONNECT"},
        {b":method": b"\xc3\xa9"},
        {b":path": b"a"},
        {b":path": b"/a b"},
        {b":path": b"/\xff"},
        {b":path": b"*"},
        {b":authority": b"a b"},
        {b"host": b"b"},
    ],
)
def test_doubtful_http2_is_refused(changed: dict[bytes, bytes]) -> None:
    with pytest.raises(HttpRefusal):
        http2_request(list((PSEUDO | changed).items()))


def test_several_hosts_are_refused() -> None:
    with pytest.raises(HttpRefusal):
        http2_request([*list(PSEUDO.items())[:3], (b"host", b"a"), (b"host", b"b")])
