"""A listening socket that turns away what there is no room for, and leaves the process its own descriptors."""

import socket
import sys
from collections.abc import Callable
from typing import Any

import structlog


class Acceptor(socket.socket):
    """Turns a connection away that would take a descriptor which is kept (see `actors.process.descriptors`), or is one
    too many."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._first_kept = sys.maxsize
        self._on_refused: Callable[[], None] | None = None
        self.refused = 0
        """Connections that were turned away."""

    def keep_from(self, number: int, on_refused: Callable[[], None]) -> None:
        """Leave the descriptors from this number on. `on_refused` hears of each connection that is turned away."""
        self._first_kept, self._on_refused = number, on_refused

    def keep_as(self, other: "Acceptor") -> None:
        """Leave the same ones as another."""
        self._first_kept, self._on_refused = other._first_kept, other._on_refused

    def accept(self) -> tuple[socket.socket, Any]:
        """See `socket.accept`. Raises `ConnectionAbortedError`, as for one that left by itself, for one that is turned
        away; an event loop then goes on."""
        connection, address = super().accept()
        reason = "no descriptor" if connection.fileno() >= self._first_kept else "too many" if self.full else ""
        if not reason:
            return connection, address
        with connection:
            self.turn_away(connection)
        self.note_refused(reason)
        raise ConnectionAbortedError(reason)

    def note_refused(self, reason: str) -> None:
        """One more connection was turned away."""
        self.refused += 1
        if self.refused & (self.refused - 1) == 0:  # 1, 2, 4, 8, ...: a flood of them is no flood of lines
            structlog.get_logger("acceptor").warning("connections_refused", count=self.refused, reason=reason)
        if self._on_refused is not None:
            self._on_refused()

    @property
    def full(self) -> bool:
        """There are as many connections as there may be, whatever the descriptors."""
        return False

    def turn_away(self, connection: socket.socket) -> None:
        """Say so, where there is a way to; it must not wait, nor raise."""
