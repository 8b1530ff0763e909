"""The health check of the container image, against a real server."""

import os
import runpy
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import trustme

from tests.baton_serve.installation import ROOT
from tests.ports import port_for_later

SCRIPT = ROOT / "deploy" / "docker" / "healthcheck.py"
check: Callable[[dict[str, str]], str] = runpy.run_path(str(SCRIPT))["check"]


@contextmanager
def answering(status: int, certificate: trustme.LeafCert | None = None) -> Iterator[str]:
    """The port of a server whose /health/ready has this status."""

    class Ready(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health/ready" else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with HTTPServer(("127.0.0.1", 0), Ready) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            certificate.configure_cert(context)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield str(server.server_port)
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_it_follows_the_readiness(status: int, healthy: bool) -> None:
    with answering(status) as port:
        problem = check({"BATON_PORT": port})
    assert (problem == "") == healthy
    assert healthy or str(status) in problem


def test_a_certificate_of_another_name_is_taken() -> None:
    with answering(200, trustme.CA().issue_cert("elsewhere.example")) as port:
        assert check({"BATON_PORT": port, "BATON_TLS_CERT": "/tls/cert.pem"}) == ""


def test_without_a_server_it_fails() -> None:
    assert "refused" in check({"BATON_PORT": str(port_for_later())})


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port_for_later()}")
    with answering(200) as port:
        assert check({"BATON_PORT": port}) == ""


@pytest.mark.parametrize(("age_s", "healthy"), [(0, True), (9, True), (10, False), (3600, False)])
def test_a_worker_is_healthy_for_ten_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_s: int, healthy: bool
) -> None:
    file = tmp_path / "health"
    file.touch()
    os.utime(file, (1000, 1000))
    monkeypatch.setattr(time, "time", lambda: 1000.0 + age_s)
    problem = check({"BATON_HEALTH_FILE": str(file)})
    assert (problem == "") == healthy
    assert healthy or f"is {age_s} s old" in problem


def test_a_worker_without_its_file_is_not_healthy(tmp_path: Path) -> None:
    assert "not joined" in check({"BATON_HEALTH_FILE": str(tmp_path / "health")})
