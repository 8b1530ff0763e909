"""Ports to listen on later."""

import random
import socket

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
