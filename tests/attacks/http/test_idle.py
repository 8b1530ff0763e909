"""Connections that are open and hardly used: they end in time, are cheap, and take no room from others."""

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.attacks.http.client import PREFACE, Http2Client, frame, no_connections, parse, read_all, read_answer, until
from tests.attacks.server import AttackedServer, attacked_server

GATEWAY_SETTINGS = {"keep_alive_s": 1}
GET = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n"
BYTES_PER_CONNECTION = 48 * 1024
MANY = 5000

SILENT = {
    "nothing": b"",
    "one byte": b"G",
    "half a head": GET,
    "half the preface": PREFACE[:10],
    "the preface": PREFACE,
    "half a frame": PREFACE + frame(4, 0, 0) + b"\0\1",
    "headers that do not end": PREFACE + frame(4, 0, 0) + frame(1, 0, 1, b"\x82"),
    "a request and half of one": GET + b"\r\n" + GET,
}


@pytest.mark.parametrize("sent", SILENT.values(), ids=SILENT)
def test_a_client_that_sends_no_more_is_closed(server: AttackedServer, sent: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(sent)
        read_all(connection)
    no_connections(server)


@pytest.mark.parametrize("start", [b"", PREFACE + frame(4, 0, 0) + frame(1, 0, 1)], ids=["HTTP/1.1", "HTTP/2"])
def test_headers_that_trickle_have_a_deadline(server: AttackedServer, start: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(start or GET)
        try:
            while True:
                connection.sendall(frame(9, 0, 1, b"\x82") if start else b"a: b\r\n")
                time.sleep(0.02)
        except OSError:
            pass  # closed
    no_connections(server)


@pytest.mark.parametrize("requests", [0, 1])
def test_an_http2_connection_ends_with_the_number_of_its_last_request(server: AttackedServer, requests: int) -> None:
    """Without a GOAWAY, a client whose request crosses the end of its connection cannot know whether to repeat it."""
    with Http2Client(server) as client:
        for _ in range(requests):
            client.ask("GET", "/health/live")
        client.until_closed()
        assert len(client.ended) == requests
        assert client.goaway == 0


def test_pings_keep_no_connection(server: AttackedServer) -> None:
    with Http2Client(server) as client:
        while not client.closed:
            client.send(frame(6, 0, 0, bytes(8)))
            client.read()
            time.sleep(0.05)
    no_connections(server)


@pytest.mark.parametrize(
    "sent",
    [b"", GET, GET + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab", PREFACE],
    ids=["nothing", "head", "body", "h2"],
)
def test_a_client_that_half_closes_holds_nothing(server: AttackedServer, sent: bytes) -> None:
    connections = [server.connect() for _ in range(20)]
    for connection in connections:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
    no_connections(server)
    for connection in connections:
        connection.close()


def test_pipelined_requests_are_answered_one_by_one(server: AttackedServer) -> None:
    count = 2000
    with server.connect() as connection:
        connection.sendall((GET + b"\r\n") * (count - 1) + GET + b"Connection: close\r\n\r\n")
        rest, seen = read_all(connection), 0
        while rest:
            answer = parse(rest)
            assert answer.status == 200
            rest, seen = answer.rest, seen + 1
        assert seen == count


def test_what_is_pipelined_after_the_last_request_is_not_served(server: AttackedServer) -> None:
    with server.connect() as connection:
        connection.sendall(GET + b"Connection: close\r\n\r\n" + (GET + b"\r\n") * 100)
        assert read_all(connection).count(b"HTTP/1.1 ") == 1
    no_connections(server)


@contextmanager
def descriptors(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"the limit of descriptors is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("speaks", ["HTTP/1.1", "HTTP/2"])
def test_thousands_of_idle_connections_are_cheap(tmp_path_factory: pytest.TempPathFactory, speaks: str) -> None:
    folder = tmp_path_factory.mktemp("many")
    with descriptors(MANY + 500), attacked_server(folder) as many, ExitStack() as stack:
        before = many.rss
        connections = []
        for _ in range(MANY):
            connections.append(stack.enter_context(many.connect()))
            if speaks == "HTTP/1.1":
                connections[-1].sendall(GET + b"\r\n")
                assert read_answer(connections[-1]).status == 200
            else:
                connections[-1].sendall(PREFACE + frame(4, 0, 0))
                assert connections[-1].recv(9)[3] == 4
        each = (many.rss - before) // MANY
        body = '{"model": "scripted", "prompt": "hi", "max_tokens": 4}'
        assert many.request("POST", "/v1/completions", body, {"content-type": "application/json"})[0] == 200
        assert each < BYTES_PER_CONNECTION
        stack.close()
        until(lambda: many.connections == 0)
        assert many.is_live()
