"""Proxies that buffer what they pass on, and clients of IPv6."""

import json
import socket

import pytest

from tests.attacks.http.client import STREAM, parse, read_all, until
from tests.attacks.server import AttackedServer, attacked_server

BODY = json.dumps({"model": "scripted", "prompt": "hi", "max_tokens": 64, "stream": True, "ignore_eos": True}).encode()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_proxy_that_reads_nothing_before_the_end_gets_the_whole_stream(server: AttackedServer, version: str) -> None:
    with server.connect() as proxy:
        proxy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = f"POST /v1/completions HTTP/{version}\r\nHost: localhost\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
        for byte in head.encode():
            proxy.sendall(bytes([byte]))
        proxy.sendall(BODY)
        response = read_all(proxy)
        assert parse(response).status == 200
        assert response.count(b"data: ") > 1
        assert b"data: [DONE]\n\n" in response[-40:]
        assert (b"transfer-encoding: chunked" in response.lower()) == (version == "1.1")


def test_a_proxy_whose_client_has_left_frees_the_stream_when_it_closes(server: AttackedServer) -> None:
    with server.connect() as proxy:
        head = "POST /v1/completions HTTP/1.0\r\nConnection: close\r\nContent-Type: application/json\r\n"
        proxy.sendall(f"{head}Content-Length: {len(STREAM)}\r\n\r\n{STREAM}".encode())
        assert proxy.recv(10)
    until(lambda: server.connections == 0)


def test_ipv6_is_served(tmp_path_factory: pytest.TempPathFactory) -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with attacked_server(tmp_path_factory.mktemp("ipv6"), host="::1") as server:
        for host in ("localhost", "[::1]", f"[::1]:{server.port}"):
            with server.connect() as connection:
                connection.sendall(f"GET /health/live HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                assert parse(read_all(connection)).status == 200
