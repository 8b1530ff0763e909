"""Bounds the time that TLS handshakes take in one turn of the event loop."""

import asyncio
import errno
import socket
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

HANDSHAKES_S = 0.01
"""Time in one turn after which no further handshake goes on in it. A signature takes from 0.1 to 8 ms by the kind of
key, and thousands of clients can ask for one at the same time."""


class Handshakes:
    """The connections in a handshake. In each turn at least one of them is read from; those whose turn is over are read
    from in the next one, as their bytes are still there."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._until: float | None = None
        """The end of the time in this turn; None before the first handshake in it."""
        self._connections: WeakValueDictionary[int, HandshakingSocket] = WeakValueDictionary()

    def begin(self, connection: socket.socket) -> "HandshakingSocket":
        """Take a connection that was accepted. Returns it as what it is until its handshake is done."""
        family, kind, protocol, descriptor = connection.family, connection.type, connection.proto, connection.detach()
        begun = HandshakingSocket(family, kind, protocol, descriptor)
        begun.may_read = self._has_time
        self._connections[descriptor] = begun
        return begun

    def done(self, descriptor: int) -> None:
        """Note that the handshake of a connection is done: it is read from at any time."""
        if (connection := self._connections.pop(descriptor, None)) is not None:
            connection.may_read = None

    def _has_time(self) -> bool:
        now = self._clock()
        if self._until is None:
            self._until = now + HANDSHAKES_S
            asyncio.get_running_loop().call_soon(self._next_turn)  # runs before what can be read then
            return True
        return now < self._until

    def _next_turn(self) -> None:
        self._until = None


class HandshakingSocket(socket.socket):
    """A connection from which nothing is read while `may_read` returns false."""

    may_read: Callable[[], bool] | None = None

    def recv_into(self, *args: Any, **options: Any) -> int:
        """See `socket.recv_into`. Raises `BlockingIOError` when there is no time left in this turn: an event loop then
        tries it again in the next one."""
        if self.may_read is not None and not self.may_read():
            raise BlockingIOError(errno.EAGAIN, "other handshakes have taken the time of this turn")
        return super().recv_into(*args, **options)
