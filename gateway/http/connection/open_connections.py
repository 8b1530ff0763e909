"""The open connections of one process, whichever of its listening sockets they came from."""

import socket
import weakref
from collections.abc import Callable


class OpenConnections:
    """Counts connections as they come and go. Other processes that accept from the same sockets may count with it."""

    def __init__(self) -> None:
        self._accepted: set[weakref.ref[socket.socket]] = set()
        self.elsewhere: Callable[[], int] = lambda: 0
        """The number of connections of other processes that count with these."""
        self.note: Callable[[int], None] = lambda count: None
        """Called with the number of connections that are known here when it changes."""

    def add(self, connection: socket.socket) -> None:
        """Count a connection until it is closed."""
        self._accepted.add(weakref.ref(connection, self._gone))
        self.note(len(self._accepted))

    @property
    def count(self) -> int:
        """Those of this process."""
        found = [each() for each in self._accepted]  # a list, as those that end meanwhile change the set
        return sum(connection is not None and connection.fileno() >= 0 for connection in found)

    def reach(self, count: int) -> bool:
        """True when at least `count` are open. They are counted only when so many are known, of which some may have
        ended."""
        elsewhere = self.elsewhere()
        if len(self._accepted) + elsewhere < count:
            return False
        here = self.count
        self.note(here)
        return here + elsewhere >= count

    def _gone(self, connection: "weakref.ref[socket.socket]") -> None:
        self._accepted.discard(connection)
        self.note(len(self._accepted))
