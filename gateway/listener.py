"""A listening socket that knows its connections."""

import asyncio
import socket
from typing import Any
from weakref import WeakSet


class Listener(socket.socket):
    """As the server accepts from it, it notes what it accepted. Its owner may stop that before the server ends: what is
    not accepted stays in the socket's queue, for whoever else has the socket."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.stopped = False
        """No more connections are taken; those that are here may finish."""
        self._accepted: WeakSet[socket.socket] = WeakSet()

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        self._accepted.add(connection)
        return connection, address

    @property
    def connections(self) -> int:
        """Accepted ones that are open."""
        return sum(connection.fileno() >= 0 for connection in self._accepted)

    def stop(self) -> None:
        """Let the running event loop accept no more from it."""
        self.stopped = True
        if self.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self.fileno())
