"""Requests that two servers could read differently: each is refused, and its connection ends."""

import json

import pytest

from tests.attacks.http.client import Http2Client, no_connections, parse, read_all, read_answer, send_all
from tests.attacks.server import AttackedServer

POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
GET = b"GET /health/live HTTP/1.1\r\n"
SMUGGLED = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"

REFUSED: dict[str, tuple[bytes, int]] = {
    "content-length beside chunked": (POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunked beside content-length": (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n", 400),
    "two content-lengths": (POST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd", 400),
    "two content-lengths in one": (POST + b"Content-Length: 4, 5\r\n\r\nabcd", 400),
    "a content-length with a sign": (POST + b"Content-Length: +4\r\n\r\nabcd", 400),
    "a content-length of 5000 digits": (POST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", 400),
    "chunked is not last": (POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 501),
    "gzip, chunked": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "chunked twice": (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
    "identity": (POST + b"Transfer-Encoding: identity\r\nContent-Length: 4\r\n\r\nabcd", 501),
    "a vertical tab in chunked": (POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
    "chunked in HTTP/1.0": (POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "a folded line": (GET + b"Host: localhost\r\nX: a\r\n b\r\n\r\n", 400),
    "a folded Transfer-Encoding": (POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400),
    "bare LF": (b"GET /health/live HTTP/1.1\nHost: localhost\n\n", 400),
    "one bare LF": (GET + b"Host: localhost\nX: y\r\n\r\n", 400),
    "bare LF at the end": (GET + b"Host: localhost\r\n\n", 400),
    "bare CR": (GET + b"Host: localhost\r\nX: a\rContent-Length: 9\r\n\r\n", 400),
    "NUL": (GET + b"Host: localhost\r\nX: a\0b\r\n\r\n", 400),
    "a control character": (GET + b"Host: localhost\r\nX: a\x01b\r\n\r\n", 400),
    "a space before the colon": (POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
    "a header without a name": (GET + b"Host: localhost\r\n: x\r\n\r\n", 400),
    "a space before the first header": (GET + b" Host: localhost\r\n\r\n", 400),
    "no Host": (GET + b"\r\n", 400),
    "two Hosts": (GET + b"Host: localhost\r\nHost: evil.example\r\n\r\n", 400),
    "two equal Hosts": (GET + b"Host: localhost\r\nHost: localhost\r\n\r\n", 400),
    "a Host with a space": (GET + b"Host: localhost evil.example\r\n\r\n", 400),
    "a Host of other bytes": (GET + b"Host: localhost\xff\r\n\r\n", 400),
    "a target without a slash": (b"GET admin/workers HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "a target of another scheme": (b"GET file:///etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "a target with a user": (b"GET http://a@localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "a target with a tab": (b"GET /\thealth HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "HTTP/2.0 in a request line": (b"GET / HTTP/2.0\r\nHost: localhost\r\n\r\n", 505),
    "HTTP/0.9": (b"GET /health/live\r\n\r\n", 400),
    "a long request line": (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
    "long headers": (GET + b"Host: localhost\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431),
    "many headers": (GET + b"Host: localhost\r\n" + b"a:\r\n" * 20_000 + b"\r\n", 431),
    "8000 headers": (GET + b"Host: localhost\r\n" + b"a:\r\n" * 8000 + b"\r\n", 431),
    "TLS": (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(100), 400),
    "an invalid chunk size": (POST + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\nabc\r\n0\r\n\r\n", 400),
    "a chunk size with a sign": (POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\nabc\r\n0\r\n\r\n", 400),
    "a chunk size that overflows": (POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 21 + b"\r\nabc", 400),
    "a chunk longer than its size": (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n0\r\n\r\n", 400),
    "a chunk that ends with LF": (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\n0\r\n\r\n", 400),
    "a long chunk extension": (POST + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"a" * 70_000, 431),
    "long trailers": (POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 20_000, 431),
    "bare LF in trailers": (POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\na: b\nc: d\r\n\r\n", 400),
}


@pytest.mark.parametrize(("sent", "status"), REFUSED.values(), ids=REFUSED)
def test_a_doubtful_request_is_refused_with_a_body_and_nothing_after_it_is_read(
    server: AttackedServer, sent: bytes, status: int
) -> None:
    with server.connect() as connection:
        send_all(connection, sent + SMUGGLED)
        answer = parse(read_all(connection))
        assert answer.status == status
        error = json.loads(answer.body)["error"]
        assert error["message"]
        assert error["code"]
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["connection"] == "close"
        assert answer.headers["x-request-id"]
        assert answer.rest == b""
    no_connections(server)


def test_refusals_that_do_not_reach_the_app_are_counted(server: AttackedServer) -> None:
    with server.connect() as connection:
        connection.sendall(b"TRACE HTTP/1.1\r\n\r\n")
        assert parse(read_all(connection)).status == 400
    with Http2Client(server) as client:
        client.h2.send_headers(1, [(":method", "CONNECT"), (":authority", "localhost:22")])
        client.flush()
        client.until(lambda: 1 in client.ended)
    metrics = server.request("GET", "/metrics")[1].decode()
    assert 'baton_http_responses_total{reason="invalid_request",route="other",status="400"}' in metrics
    assert 'baton_http_responses_total{reason="unsupported",route="other",status="501"}' in metrics


SERVED: dict[str, bytes] = {
    "equal content-lengths": GET + b"Host: localhost\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "a header of other bytes": GET + b"Host: localhost\r\nX: \xff\xfe\r\n\r\n",
    "an absolute target": b"GET http://localhost/health/live HTTP/1.1\r\nHost: other.example\r\n\r\n",
    "an absolute target in upper case": b"GET HTTP://localhost/health/live?x=1 HTTP/1.1\r\nHost: a\r\n\r\n",
    "HTTP/1.0 without Host": b"GET /health/live HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    "a minor version to come": b"GET /health/live HTTP/1.2\r\nHost: localhost\r\n\r\n",
    "an IPv6 host": GET + b"Host: [::1]:8000\r\n\r\n",
    "chunk extensions and trailers": GET
    + b"Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1;a=b\r\nx\r\n0\r\nc: d\r\n\r\n",
    "1000 headers": GET + b"Host: localhost\r\n" + b"a:\r\n" * 998 + b"\r\n",
    "100-continue": GET + b"Host: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab",
}


@pytest.mark.parametrize("sent", SERVED.values(), ids=SERVED)
def test_what_the_rfc_allows_is_served(server: AttackedServer, sent: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(sent)
        answer = read_answer(connection)
        if answer.status == 100:
            answer = parse(answer.rest) if answer.rest else read_answer(connection)
        assert answer.status == 200
    no_connections(server)


def test_the_host_of_an_absolute_target_counts(server: AttackedServer) -> None:
    """A page of another host may not act on this one, whatever its `Host` header is."""
    with server.connect() as connection:
        connection.sendall(
            b"POST http://evil.example/admin/drain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
        )
        assert read_answer(connection).status == 403
    assert server.request("GET", "/health/ready")[0] == 200
