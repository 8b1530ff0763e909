"""Ports for those who listen later."""

import random
import socket

BELOW = range(20000, 32000)
"""Below those that Linux and macOS give to connections: nobody gets one of these by chance."""


def port_for_later() -> int:
    """A port that is free, and stays so until somebody listens on it: unlike one that the system chose."""
    while True:
        port = random.choice(BELOW)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
