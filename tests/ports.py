"""Ports of loopback: free ones to listen on later, and HTTP servers on one, for clients tested without ours."""

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

BELOW = range(20000, 32000)
"""Below the ephemeral ports of Linux and macOS, so that no connection gets one by chance."""


def port_for_later() -> int:
    """Return a free port that the system does not assign to others, unlike one that it chose itself."""
    while True:
        port = random.choice(BELOW)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue


class QuietHandler(BaseHTTPRequestHandler):
    """Prints nothing about its requests."""

    def log_message(self, format: str, *args: object) -> None: ...


@contextmanager
def serving_http(handler: type[QuietHandler]) -> Iterator[str]:
    """Serve on a free port until the block ends, each connection in a thread, and yield the URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
