"""Clients that read nothing, or next to nothing: they are dropped, and what waits for them is bounded."""

import socket

import pytest
from h2.settings import SettingCodes

from tests.attacks.http.client import STREAM, Http2Client, no_connections, until
from tests.attacks.server import AttackedServer

OPTIONS = ("--client-stall-s", "1")
GATEWAY_SETTINGS = {"keep_alive_s": 2}
WINDOW = SettingCodes.INITIAL_WINDOW_SIZE
ROUTES = [("GET", "/", b""), ("GET", "/metrics", b""), ("POST", "/v1/completions", STREAM.encode())]
IDS = [path for _, path, _ in ROUTES]


@pytest.mark.parametrize("window", [0, 1, 1000, 65535])
@pytest.mark.parametrize(("method", "path", "body"), ROUTES, ids=IDS)
def test_a_stream_whose_window_does_not_open_is_reset(
    server: AttackedServer, method: str, path: str, body: bytes, window: int
) -> None:
    with Http2Client(server, {WINDOW: window}) as client:
        stream = client.ask(method, path, body)
        client.until(lambda: stream in client.resets or stream in client.ended, take=False)
        assert stream in client.resets or len(client.bodies[stream]) <= window
        client.h2.increment_flow_control_window(2**20)
        other = client.ask("GET", "/health/ready")
        client.h2.increment_flow_control_window(2**20, other)
        client.until(lambda: other in client.ended)
        assert client.statuses[other] == 200
    no_connections(server)


def test_streams_behind_a_closed_window_of_their_connection_are_reset(server: AttackedServer) -> None:
    before = server.rss
    with Http2Client(server, {WINDOW: 2**31 - 1}) as client:
        streams = [client.ask("POST", "/v1/completions", STREAM.encode()) for _ in range(8)]
        # The window has room for a whole answer or two, if the server sends several tokens at once.
        client.until(lambda: all(stream in client.resets or stream in client.ended for stream in streams), take=False)
        assert client.resets
    no_connections(server)
    assert server.rss < before + 64 * 2**20


def test_a_window_that_opens_by_one_byte_ends_the_stream(server: AttackedServer) -> None:
    with Http2Client(server, {WINDOW: 0}) as client:
        stream = client.ask("POST", "/v1/completions", STREAM.encode())
        while client.goaway is None and not client.closed and stream not in client.resets:
            client.h2.increment_flow_control_window(1, stream)
            client.flush()
            client.read(take=False)
        assert client.goaway or stream in client.resets
    no_connections(server)


@pytest.mark.parametrize("path", ["/", "/metrics", "/nope"])
def test_a_client_that_pipelines_and_reads_nothing_is_dropped(server: AttackedServer, path: str) -> None:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with connection:
        connection.connect(("127.0.0.1", server.port))
        connection.settimeout(1)
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        try:
            while True:
                connection.sendall(request * 100)
        except OSError:
            pass  # the server has stopped reading, or has closed the connection
        until(lambda: server.connections == 0)


def test_a_client_that_reads_slowly_gets_all(server: AttackedServer) -> None:
    with Http2Client(server, {WINDOW: 2000}) as client:
        stream = client.ask("GET", "/")
        client.until(lambda: stream in client.ended)
        status, body = server.request("GET", "/")
        assert (client.statuses[stream], client.bodies[stream]) == (status, body)
