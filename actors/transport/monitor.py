"""The connections of a socket, as libzmq reports them; and which process is at the other end of one."""

import os
import socket as sockets
import struct
import sys
from enum import Enum, auto

import zmq
from zmq.utils.monitor import parse_monitor_message

_EVENTS = int(
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_ACCEPT_FAILED
    | zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_DISCONNECTED
)
_NOBODY = int(zmq.EVENT_CLOSED)
_NONE = -1
"""Is no connection's descriptor."""


class Change(Enum):
    """A change in a connection."""

    READY = auto()
    """One can be used from now on."""
    LOST = auto()
    """The one that counts ended: the first one to be ready."""
    NOBODY = auto()
    """Nobody listens at the address (reported to the connecting side alone)."""
    REJECTED = auto()
    """Another one ended: it failed its handshake, or came second. On the binding side the first one stays."""
    KEY_REJECTED = auto()
    """Its key is not on the allow-list. Reported before its end, in place of REJECTED."""


class Monitor:
    """Follows the connections of one socket. `next` is asked until it has nothing more.

    libzmq names the connection that was made and the one that ended, by its descriptor, but not the one that succeeded
    in its handshake, nor the one that failed. Who succeeds while others try is known by the first message (`identify`).
    What needs no handshake to be refused, as bytes of another protocol, ends without another word: so it is the end of
    a connection that is counted, each once.
    """

    def __init__(self, socket: "zmq.Socket[bytes]", bind: bool) -> None:
        self._watched = socket
        self._socket = socket.get_monitor_socket(_EVENTS | (0 if bind else _NOBODY))
        self._open: set[int] = set()
        """Connections that were made and have not ended."""
        self._peer: int | None = None
        """The one that counts, once it is certain."""
        self._keys_rejected = 0
        """Connections that were KEY_REJECTED and have not ended."""
        self.connected = False
        """A connection was ready once."""
        self.descriptor = int(self._socket.getsockopt(zmq.FD))

    def next(self) -> Change | None:
        """The next change that matters, or None when there is none for now."""
        while self._socket.poll(0):
            event = parse_monitor_message(self._socket.recv_multipart(zmq.NOBLOCK))
            match event["event"]:
                case zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED:
                    self._open.add(event["value"])
                case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    if not self.connected and len(self._open) == 1:
                        (self._peer,) = self._open
                    self.connected = True
                    return Change.READY
                case zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                    self._keys_rejected += 1
                    return Change.KEY_REJECTED
                case zmq.EVENT_ACCEPT_FAILED:
                    return Change.REJECTED
                case zmq.EVENT_CLOSED:
                    return Change.NOBODY
                case zmq.EVENT_DISCONNECTED if (change := self._ended(event["value"])) is not None:
                    return change
        return None

    def _ended(self, descriptor: int) -> Change | None:
        self._open.discard(descriptor)
        last = self.connected and self._peer is None and not self._open
        if descriptor == self._peer or last:
            return Change.LOST
        if self._keys_rejected:
            self._keys_rejected -= 1
            return None
        return Change.REJECTED

    def identify(self, frame: zmq.Frame) -> bool:
        """The first message came: the connection that it came over counts. False when that has ended."""
        try:
            self._peer = int(frame.get(zmq.SRCFD))
        except zmq.ZMQError:  # a C library that cannot name a Unix socket's peer (musl): then libzmq does not report it
            if self._peer is None:
                self._peer = _NONE
        return self._peer in self._open

    def peer_pid(self) -> int | None:
        """Return the process at the other end of a Unix socket (unix(7), SO_PEERCRED): None over TCP and where the
        system does not report it, or has not yet; 0 for one that was gone too soon, or that cannot be distinguished
        from another one."""
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
