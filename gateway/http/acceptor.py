"""A listening socket that rejects connections over a bound, so that some descriptors stay free."""

import socket
import sys
from collections.abc import Callable
from typing import Any

import structlog


class Acceptor(socket.socket):
    """Rejects a connection that would take a reserved descriptor (see `gateway.fleet.descriptors`), or is over the
    bound of connections."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._first_kept = sys.maxsize
        self._on_refused: Callable[[], None] | None = None
        self.refused = 0
        """Connections that were rejected."""

    def keep_from(self, number: int, on_refused: Callable[[], None]) -> None:
        """Reserve the descriptors from this number on. `on_refused` is called for each rejected connection."""
        self._first_kept, self._on_refused = number, on_refused

    def keep_as(self, other: "Acceptor") -> None:
        """Reserve the same descriptors as another."""
        self._first_kept, self._on_refused = other._first_kept, other._on_refused

    def accept(self) -> tuple[socket.socket, Any]:
        """See `socket.accept`. Raises `ConnectionAbortedError` for a connection that is rejected: an event loop then
        accepts the next one."""
        connection, address = super().accept()
        reason = "no descriptor" if connection.fileno() >= self._first_kept else "too many" if self.full else ""
        if not reason:
            return connection, address
        with connection:
            self.reject(connection)
        self.note_refused(reason)
        raise ConnectionAbortedError(reason)

    def note_refused(self, reason: str) -> None:
        """Count a connection that was rejected."""
        self.refused += 1
        if self.refused & (self.refused - 1) == 0:  # 1, 2, 4, 8, ...: a flood of them must not flood the log
            structlog.get_logger("acceptor").warning("connections_refused", count=self.refused, reason=reason)
        if self._on_refused is not None:
            self._on_refused()

    @property
    def full(self) -> bool:
        """The bound of connections is reached, whatever the descriptors."""
        return False

    def reject(self, connection: socket.socket) -> None:
        """Answer the client, if the protocol has an answer. Must not wait or raise."""
