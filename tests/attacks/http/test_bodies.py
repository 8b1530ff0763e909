"""Bodies that no route reads, that trickle, or that never end: no connection outlives its deadline."""

import socket
import time

import pytest

from tests.attacks.http.client import Http2Client, no_connections, parse, read_all, read_answer, send_all
from tests.attacks.server import AttackedServer

OPTIONS = ("--body-timeout-s", "2", "--client-stall-s", "2", "--max-body-bytes", "200000")
CLIENTS = 8
CHUNK = b"5\r\nhello\r\n"
ROUTES = [
    ("GET", "/health/live"),
    ("POST", "/health/live"),
    ("GET", "/metrics"),
    ("GET", "/v1/models"),
    ("POST", "/nope"),
    ("DELETE", "/v1/streams/nope"),
    ("GET", "/v1/streams/nope"),
    ("GET", "/"),
    ("POST", "/v1/completions"),
]
IDS = [f"{method} {path}" for method, path in ROUTES]


def head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def is_open(connection: socket.socket, data: bytes) -> bool:
    """True while the server takes more of a body."""
    try:
        connection.sendall(data)
    except OSError:
        return False
    return True


def chunked(server: AttackedServer, method: str, path: str, chunks: int) -> socket.socket:
    """A request whose chunks do not end."""
    connection = server.connect()
    send_all(connection, head(method, path, "Transfer-Encoding: chunked") + CHUNK * chunks)
    return connection


@pytest.mark.parametrize(("method", "path"), ROUTES, ids=IDS)
def test_a_client_that_leaves_within_a_chunked_body_frees_its_connection(
    server: AttackedServer, method: str, path: str
) -> None:
    """It has read its answer, so that its system sends FIN, which a server that does not read never sees."""
    for connection in [chunked(server, method, path, 50) for _ in range(CLIENTS)]:
        assert connection.recv(65536).startswith(b"HTTP/1.1 ")
        connection.close()
    no_connections(server)


@pytest.mark.parametrize(("method", "path"), ROUTES, ids=IDS)
def test_a_chunked_body_that_never_ends_has_a_deadline(server: AttackedServer, method: str, path: str) -> None:
    connections = [chunked(server, method, path, 50) for _ in range(CLIENTS)]
    for connection in connections:
        assert read_all(connection).startswith(b"HTTP/1.1 ")
        connection.close()
    no_connections(server)


@pytest.mark.parametrize(("method", "path"), ROUTES[:-1], ids=IDS[:-1])
def test_a_chunked_body_that_is_not_read_keeps_the_connection(server: AttackedServer, method: str, path: str) -> None:
    with chunked(server, method, path, 50) as connection:
        connection.sendall(b"0\r\n\r\n")
        first = read_answer(connection)
        connection.sendall(head("GET", "/health/live"))
        second = read_answer(connection)
        assert (first.rest, second.status) == (b"", 200)


def test_a_body_over_the_bound_that_is_not_read_ends_its_connection(server: AttackedServer) -> None:
    with server.connect() as connection:
        connection.sendall(head("POST", "/nope", "Content-Length: 100000000"))
        assert read_answer(connection).status == 404
        while is_open(connection, bytes(50_000)):
            pass
    no_connections(server)


@pytest.mark.parametrize("path", ["/v1/completions", "/nope"])
def test_a_body_that_trickles_has_a_deadline(server: AttackedServer, path: str) -> None:
    with server.connect() as connection:
        connection.sendall(head("POST", path, "Content-Type: application/json", "Content-Length: 100000"))
        while is_open(connection, b" "):
            time.sleep(0.02)
    no_connections(server)


def test_a_refused_client_reads_why_while_it_still_sends(server: AttackedServer) -> None:
    with server.connect() as connection:
        connection.sendall(head("POST", "/v1/completions", "Content-Type: application/json", "Content-Length: 390000"))
        send_all(connection, bytes(390_000))
        assert parse(read_all(connection)).status == 413


def test_a_body_in_tiny_chunks_holds_nobody_up(server: AttackedServer) -> None:
    with server.connect() as connection:
        connection.sendall(
            head("POST", "/v1/completions", "Content-Type: application/json", "Transfer-Encoding: chunked")
        )
        send_all(connection, b"1\r\n \r\n" * 100_000)
        assert parse(read_all(connection)).status == 400
    no_connections(server)


@pytest.mark.parametrize("path", ["/health/live", "/nope", "/v1/completions"])
def test_a_body_that_does_not_end_harms_no_other_stream(server: AttackedServer, path: str) -> None:
    """On HTTP/2, where one connection carries both."""
    with Http2Client(server) as client:
        client.h2.update_settings({})
        unread = [client.ask("POST", path, bytes(5000), end=False) for _ in range(8)]
        for _ in range(30):
            client.h2.send_data(unread[0], b"x")
        other = client.ask("GET", "/health/live")
        client.until(lambda: other in client.ended)
        assert client.statuses[other] == 200
        client.until(lambda: all(each in client.ended or each in client.resets for each in unread))
        again = client.ask("GET", "/health/live")
        client.until(lambda: again in client.ended)
    no_connections(server)
