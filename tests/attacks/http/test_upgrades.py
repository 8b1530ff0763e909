"""Other protocols than the one that a connection began with."""

import base64

import pytest

from tests.attacks.http.client import (
    PREFACE,
    STREAM,
    Http2Client,
    frame,
    no_connections,
    parse,
    read_all,
    read_answer,
    send_all,
)
from tests.attacks.server import AttackedServer

H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
WEBSOCKET = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: " + base64.b64encode(bytes(16)) + b"\r\n"
)
GET = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize("upgrade", [H2C, WEBSOCKET], ids=["h2c", "websocket"])
def test_an_upgrade_is_ignored(server: AttackedServer, upgrade: bytes) -> None:
    with server.connect() as connection:
        for _ in range(2):
            connection.sendall(GET + upgrade + b"\r\n")
            answer = read_answer(connection)
            assert (answer.status, answer.rest) == (200, b"")


@pytest.mark.parametrize("upgrade", [H2C, WEBSOCKET], ids=["h2c", "websocket"])
def test_what_follows_an_upgrade_is_taken_for_http1(server: AttackedServer, upgrade: bytes) -> None:
    smuggled = PREFACE + frame(4, 0, 0) + frame(1, 5, 1, b"\x82\x86\x84\x41\x01x")
    with server.connect() as connection:
        connection.sendall(GET + upgrade + b"\r\n" + smuggled)
        first = parse(read_all(connection))
        second = parse(first.rest)
        assert (first.status, second.status, second.rest) == (200, 505, b"")
    no_connections(server)


@pytest.mark.parametrize("upgrade", [b"", H2C, WEBSOCKET, b"Upgrade: x\r\n"], ids=["none", "h2c", "websocket", "other"])
def test_a_client_that_asked_for_an_upgrade_and_leaves_is_noticed(server: AttackedServer, upgrade: bytes) -> None:
    with server.connect() as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(head + upgrade + b"Content-Length: %d\r\n\r\n" % len(STREAM) + STREAM.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    no_connections(server)


def test_the_preface_after_a_request_is_no_http2(server: AttackedServer) -> None:
    with server.connect() as connection:
        connection.sendall(GET + b"\r\n")
        assert read_answer(connection).status == 200
        connection.sendall(PREFACE + frame(4, 0, 0))
        answer = parse(read_all(connection))
        assert (answer.status, answer.rest) == (505, b"")


def test_the_preface_in_single_bytes_is_http2(server: AttackedServer) -> None:
    with server.connect() as connection:
        for at in range(len(PREFACE)):
            connection.sendall(PREFACE[at : at + 1])
        connection.sendall(frame(4, 0, 0))
        assert connection.recv(9)[3] == 4  # SETTINGS


@pytest.mark.parametrize("start", [PREFACE[:-1] + b"X", PREFACE[:18], b"PRI * HTTP/2.0\r\nHost: x\r\n\r\n", b"PRI"])
def test_something_like_the_preface_is_no_http2(server: AttackedServer, start: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(start)
        connection.shutdown(1)
        assert parse(read_all(connection)).status in (400, 505)


def test_tunnels_are_not_announced_and_are_refused(server: AttackedServer) -> None:
    with Http2Client(server) as client:
        client.until(lambda: client.h2.remote_settings.max_concurrent_streams == 100)
        assert client.h2.remote_settings.enable_connect_protocol == 0
        client.h2.send_headers(1, [(":method", "CONNECT"), (":authority", "localhost:22")])
        client.flush()
        client.until(lambda: 1 in client.statuses)
        assert client.statuses == {1: 501}
    with server.connect() as connection:
        connection.sendall(b"CONNECT localhost:22 HTTP/1.1\r\nHost: localhost:22\r\n\r\n")
        assert parse(read_all(connection)).status == 501


def test_an_extended_connect_ends_alone(server: AttackedServer) -> None:
    """It is not announced, so it is an error of the client."""
    with Http2Client(server) as client:
        head = [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "http")]
        client.h2.send_headers(1, [*head, (":authority", "localhost"), (":path", "/")])
        client.flush()
        while not (client.closed or client.statuses or client.resets):
            client.read()
        assert client.statuses.get(1, 501) == 501
    no_connections(server)


def test_a_tunnel_of_http1_holds_no_connection(server: AttackedServer) -> None:
    for upgrade in (H2C, WEBSOCKET):
        connections = [server.connect() for _ in range(20)]
        for connection in connections:
            send_all(connection, b"GET /nope HTTP/1.1\r\nHost: localhost\r\n" + upgrade + b"\r\n" + b"\x81\x85" * 2000)
        for connection in connections:
            connection.close()
    no_connections(server)
