"""A listening socket that counts its connections and rejects those over a bound."""

import asyncio
import errno
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from gateway.errors import RequestError
from gateway.http.acceptor import Acceptor
from gateway.http.connection.handshakes import Handshakes
from gateway.http.connection.open_connections import OpenConnections
from gateway.http.conventions import ErrorRenderer
from gateway.http.tls import Tls
from protocol.errors import ErrorCode

BACKLOG = 4096
SPARE = 32
"""Connections beyond `max_connections` that are accepted, for probes alone: see `gateway.http.probes`."""
ACCEPTS_PER_TURN = 128
ENCRYPTED_ACCEPTS_PER_TURN = 32
"""The state of a TLS connection takes four times as long to make."""
NO_ROOM = "the server has no room for another connection"
_READ_BYTES = 65536


class BindError(Exception):
    """Raised when the address cannot be listened on; the message has the address and the reason."""


def refusal(errors: ErrorRenderer) -> bytes:
    """The HTTP/1.1 response to a connection over the bound, from which no request is read."""
    full = RequestError(ErrorCode.UNAVAILABLE, NO_ROOM, retry_after_s=1)
    body = errors.body(full)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        *full.headers,
    ]
    lines = b"".join(b"%s: %s\r\n" % each for each in headers)
    return b"HTTP/1.1 503 Service Unavailable\r\n%s\r\n%s" % (lines, body)


def _identity_of(path: Path) -> tuple[int, ...]:
    """The device, the inode and the time of creation of a socket file: inodes are used again. Raises `OSError`."""
    state = path.lstat()
    return state.st_dev, state.st_ino, state.st_mtime_ns  # nothing is ever written to a socket file


class Listener(Acceptor):
    """Counts the connections that the server accepts from it. Its owner may stop accepting before the server ends:
    pending connections stay in the socket's queue, for another process that has the socket."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.retired = False
        """Connections take no further requests; those under way may finish."""
        self.on_retire: Callable[[float | None], None] = lambda within_s: None
        """Called by `retire` with its argument; set by the server."""
        self.on_stop: Callable[[], None] = self.close
        """Called by `stop`; set by the server, which closes the socket in the next turn of the event loop."""
        self.refusal = b""
        """The response to connections over the bound; set by the server."""
        self.max_connections = sys.maxsize
        self.accepts_per_turn = ACCEPTS_PER_TURN
        """Connections that are accepted in one turn of the event loop. Fewer, if other processes accept as well."""
        self.tls: Tls | None = None
        """The TLS of its connections. Those in a handshake count."""
        self.handshakes = Handshakes()
        self.path: Path | None = None
        """The file of a Unix socket."""
        self.file: tuple[int, ...] | None = None
        """The identity of that file, which this gateway removes; None if another one will."""
        self.open = OpenConnections()
        self._spare: WeakSet[socket.socket] = WeakSet()
        self._accepts = 0
        """Calls of `accept` in this turn of the event loop."""
        self._stopped = False

    def accept(self) -> tuple[socket.socket, Any]:
        """See `Acceptor.accept`. Raises `BlockingIOError` after `accepts_per_turn` in one turn of the event loop, or
        `ENCRYPTED_ACCEPTS_PER_TURN` with TLS, where asyncio would accept as many as the queue holds, and after
        `stop`."""
        if self._stopped:
            raise BlockingIOError(errno.EAGAIN, "another process accepts the others")
        most = self.accepts_per_turn if self.tls is None else min(self.accepts_per_turn, ENCRYPTED_ACCEPTS_PER_TURN)
        if self._accepts == most:
            raise BlockingIOError(errno.EAGAIN, "the others are accepted in the next turn")
        if not self._accepts:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._accepts += 1
        connection, address = super().accept()
        if self.tls is not None:
            connection = self.handshakes.begin(connection)
        if self.open.reach(self.max_connections):
            self._spare.add(connection)
        self.open.add(connection)
        return connection, address

    def count_with(self, other: "Listener") -> None:
        """Count the connections of both sockets together."""
        self.open, self._spare = other.open, other._spare

    def own_file(self) -> None:
        """Remove the file of a Unix socket in the end."""
        if self.path is not None:
            with suppress(FileNotFoundError):
                self.file = _identity_of(self.path)

    def remove_file(self) -> None:
        """Remove the file of a Unix socket, unless it belongs to another server by now."""
        if self.path is None or self.file is None:
            return
        with suppress(FileNotFoundError):
            if _identity_of(self.path) == self.file:
                self.path.unlink()
        self.file = None

    def _next_turn(self) -> None:
        self._accepts = 0

    @property
    def full(self) -> bool:
        """No further connection may be open."""
        return self.open.reach(self.max_connections + SPARE)

    def is_spare(self, descriptor: int) -> bool:
        """True for a connection that was accepted beyond `max_connections`."""
        return any(connection.fileno() == descriptor for connection in self._spare)

    def reject(self, connection: socket.socket) -> None:
        """Reject a connection with a response, whether a request has arrived or not; over TLS without one, as it would
        need a handshake."""
        with suppress(OSError):
            connection.setblocking(False)
            connection.send(self.refusal)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(_READ_BYTES)  # unread bytes would turn the end into a reset

    @property
    def connections(self) -> int:
        """Accepted ones that are open."""
        return self.open.count

    def retire(self, within_s: float | None = None) -> None:
        """Make clients open new connections for their next requests. Connections are still accepted, for one request
        each. With `within_s` new requests are refused, and every client is notified within this time."""
        self.retired = True
        self.on_retire(within_s)

    def stop(self) -> None:
        """Retire, and accept no more. The socket is closed in this process within a turn of the event loop, so that
        clients are refused when the other process that has it dies, and do not wait in a queue that no process
        reads."""
        self.retire()
        self._stopped = True
        self.on_stop()
