"""The health check of the container image, against a real server."""

import runpy
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

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
