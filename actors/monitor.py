"""What becomes of a socket's connections, as libzmq tells it; and which process is at the other end of one."""

import os
import socket as sockets
import struct
import sys
from enum import Enum, auto

import zmq
from zmq.utils.monitor import parse_monitor_message

_SUCCESS = int(zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
_FAILURE = int(
    zmq.EVENT_ACCEPT_FAILED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_NOBODY = int(zmq.EVENT_CLOSED)


class Change(Enum):
    """What became of the connection that counts, the first one to be ready."""

    READY = auto()
    """It can be used from now on."""
    LOST = auto()
    """It ended."""
    NOBODY = auto()
    """Nobody listens at the address (told to the connecting side alone)."""
    REFUSED = auto()
    """Some connection failed its handshake; on the binding side it disturbs nobody."""
    TURNED_AWAY = auto()
    """The same, because its key is not on the allow-list."""


class Monitor:
    """Follows the connections of one socket. `next` is asked until it has nothing more."""

    def __init__(self, socket: "zmq.Socket[bytes]", bind: bool) -> None:
        self._watched = socket
        self._socket = socket.get_monitor_socket(_SUCCESS | _FAILURE | (0 if bind else _NOBODY))
        self._accepted: int | None = None
        self._peer: int | None = None
        self.descriptor = int(self._socket.getsockopt(zmq.FD))

    @property
    def connected(self) -> bool:
        """A connection was ready once."""
        return self._peer is not None

    def next(self) -> Change | None:
        """The next change that matters, or None when there is none for now."""
        while self._socket.poll(0):
            event = parse_monitor_message(self._socket.recv_multipart(zmq.NOBLOCK))
            kind, value = event["event"], event["value"]
            if kind in (zmq.EVENT_ACCEPTED, zmq.EVENT_CONNECTED):
                self._accepted = value
            elif kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                if self._peer is None:
                    self._peer = self._accepted
                return Change.READY
            elif kind == zmq.EVENT_CLOSED:
                return Change.NOBODY
            elif kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                return Change.TURNED_AWAY
            elif kind == zmq.EVENT_DISCONNECTED:
                if value == self._peer:
                    return Change.LOST
            else:
                return Change.REFUSED
        return None

    def peer_pid(self) -> int | None:
        """Which process is at the other end of a Unix socket (unix(7), SO_PEERCRED): None over TCP and where the
        system does not tell, 0 for one that was gone too soon."""
        if sys.platform != "linux" or self._peer is None:
            return None
        try:
            with sockets.socket(fileno=os.dup(self._peer)) as connection:
                if connection.family != sockets.AF_UNIX:
                    return None
                credentials = connection.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:  # the connection has ended already
            return 0
        pid: int = struct.unpack("3i", credentials)[0]
        return pid

    def close(self) -> None:
        self._watched.disable_monitor()
        self._socket.close(0)
