"""A link's socket: its bounds, its keys, what it does when the other end is gone, and what is made and ends with it."""

import os
from dataclasses import dataclass

import zmq

from actors.process import descriptors, threads
from actors.transport.curve_authentication import DOMAIN, Admission
from actors.transport.endpoint import EndpointError, check_address
from actors.transport.monitor import Monitor
from protocol.bounds import MAX_FRAME_BYTES

HIGH_WATER = 1024
"""Messages that wait on each side before `LinkFull`."""
CURVE_BYTES = 33
"""Bytes that CURVE adds to a frame (ZeroMQ RFC 26, "MESSAGE command"): a name, a nonce, flags and the authenticator."""
NEVER_MS = 7 * 24 * 3600 * 1000
HEARTBEAT_MS = 5000
"""Between two of libzmq's own pings over TCP, whose connections may die without a word."""
HEARTBEAT_TIMEOUT_MS = 15000
"""Without a sign of the other end, until the connection counts as gone."""


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """CURVE keys in Z85 text, 40 characters each: they encrypt, and prove each side to the other."""

    public: str
    secret: str
    server: str = ""
    """For the connecting side: the public key of the binding one."""
    allowed: frozenset[str] = frozenset()
    """For the binding side: the public keys of those that may connect; nobody else can."""


class LinkSocket:
    """A ZeroMQ socket that is bound or connected, its monitor, and the authentication of its clients.

    It has a context (one I/O thread) of its own: no state is shared between peers, and nothing is global.
    """

    def __init__(self, endpoint: str, bind: bool, keys: CurveKeys | None) -> None:
        """Raises `EndpointError`."""
        check_address(endpoint, secured=keys is not None and (bool(keys.allowed) or not bind))
        try:
            descriptors.check_free(descriptors.LINK)
            threads.check_threads(threads.LINK)
        except (descriptors.NoDescriptors, threads.NoThreads) as error:
            raise EndpointError(f"no socket can be made for {endpoint}: {error}") from error
        self._context = zmq.Context()
        # From the start, not at the close: a connection that ends before it, with messages that nobody takes, may keep
        # the value of that moment. The default is infinite: `term` then never returned.
        self._context.setsockopt(zmq.LINGER, 0)
        try:
            self.socket: zmq.Socket[bytes] = self._context.socket(zmq.PAIR)
            self.monitor = Monitor(self.socket, bind)
        except zmq.ZMQError as error:  # as when the process has no descriptor left
            self._context.destroy(0)
            raise EndpointError(f"no socket can be made for {endpoint}: {error}") from error
        self._admission: Admission | None = None
        try:
            configure(self.socket, endpoint, keys, bind)
            if bind:
                self._admission = Admission(self._context, None if keys is None else keys.allowed)
            self.socket.bind(endpoint) if bind else self.socket.connect(endpoint)
        except (zmq.ZMQError, ValueError) as error:
            self.close(0)
            raise EndpointError(f"cannot {'bind' if bind else 'connect to'} {endpoint}: {error}") from error
        self.descriptor = int(self.socket.getsockopt(zmq.FD))
        """Is readable when the state of the socket has changed."""

    @property
    def address(self) -> str:
        """The address that was bound or connected last, with its port."""
        return self.socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def close(self, linger_ms: int) -> None:
        """Close all of it, giving unsent messages as long (blocking)."""
        self.monitor.close()
        self.socket.close(linger_ms)
        if self._admission is not None:
            self._admission.close()
        self._context.term()


def configure(socket: "zmq.Socket[bytes]", endpoint: str, keys: CurveKeys | None, bind: bool) -> None:
    """Set a link's socket up, before it binds or connects. Raises `zmq.ZMQError` for invalid keys."""
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES + (0 if keys is None else CURVE_BYTES))
    if bind:
        socket.setsockopt_string(zmq.ZAP_DOMAIN, DOMAIN)
        try:
            # Other users' processes are rejected by libzmq, whatever the folder's mode.
            socket.setsockopt(zmq.IPC_FILTER_UID, os.getuid())
        except zmq.ZMQError:
            pass  # a libzmq or a system without peer credentials: the folder alone keeps them out
    else:
        # In effect never: a new connection would hide that messages were lost. Not -1, which makes libzmq throw
        # away what has arrived and was not read yet when the connection ends.
        socket.setsockopt(zmq.RECONNECT_IVL, NEVER_MS)
        if endpoint.startswith("tcp:"):
            socket.setsockopt(zmq.IPV6, 1)
            socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    if keys is not None:
        socket.setsockopt_string(zmq.CURVE_PUBLICKEY, keys.public)
        socket.setsockopt_string(zmq.CURVE_SECRETKEY, keys.secret)
        if bind:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
        else:
            socket.setsockopt_string(zmq.CURVE_SERVERKEY, keys.server)
