"""A listening socket that knows its connections."""

import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from actors.transport.acceptor import Acceptor
from gateway.http.errors import from_code
from protocol.errors import ErrorCode

SPARE = 32
"""Connections beyond `max_connections` that are accepted, for probes alone: see `gateway.http.probes`."""
NO_ROOM = "the server has no room for another connection"
_FULL = from_code(ErrorCode.UNAVAILABLE, NO_ROOM)
_BODY = _FULL.body()
_HEADERS = [
    (b"content-type", b"application/json"),
    (b"content-length", b"%d" % len(_BODY)),
    (b"connection", b"close"),
    *_FULL.headers,
]
_ANSWER = b"HTTP/1.1 503 Service Unavailable\r\n%s\r\n%s" % (b"".join(b"%s: %s\r\n" % each for each in _HEADERS), _BODY)
_READ_BYTES = 65536


class Listener(Acceptor):
    """As the server accepts from it, it notes what it accepted. Its owner may stop that before the server ends: what is
    not accepted stays in the socket's queue, for whoever else has the socket."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.retired = False
        """Connections are to be used no more; what is under way on them may finish."""
        self.on_retire: Callable[[float | None], None] = lambda within_s: None
        """Whoever serves the connections hears of it here, with the argument of `retire`."""
        self.on_stop: Callable[[], None] = self.close
        """Whoever accepts from it, and closes it, hears of that here."""
        self.max_connections = sys.maxsize
        self._accepted: WeakSet[socket.socket] = WeakSet()
        self._spare: WeakSet[socket.socket] = WeakSet()

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        if self._has(self.max_connections):
            self._spare.add(connection)
        self._accepted.add(connection)
        return connection, address

    @property
    def full(self) -> bool:
        """No further connection may be open."""
        return self._has(self.max_connections + SPARE)

    def _has(self, count: int) -> bool:
        """So many are open. They are counted only when there seem to be: some that are known may have ended."""
        return len(self._accepted) >= count <= self.connections

    def is_spare(self, descriptor: int) -> bool:
        """It was accepted beyond `max_connections`."""
        return any(connection.fileno() == descriptor for connection in self._spare)

    def reject(self, connection: socket.socket) -> None:
        """Answer a request that may not have come yet."""
        with suppress(OSError):
            connection.setblocking(False)
            connection.send(_ANSWER)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(_READ_BYTES)  # or what has come already turns the end into a reset

    @property
    def connections(self) -> int:
        """Accepted ones that are open."""
        return sum(connection.fileno() >= 0 for connection in self._accepted)

    def retire(self, within_s: float | None = None) -> None:
        """Let clients take their next requests elsewhere. Connections are still accepted, for one request each.
        `within_s`: what comes from now on is refused, and every client is to know it within this time."""
        self.retired = True
        self.on_retire(within_s)

    def stop(self) -> None:
        """The same, and accept no more. This process lets go of the socket at once: when the other one that has it
        dies, clients are refused, and not kept in a queue that nobody looks at."""
        self.retire()
        self.on_stop()
