"""How a link's socket is set up: its bounds, its keys, and what it does when the other end is gone."""

import os
from dataclasses import dataclass

import zmq

from actors.admission import DOMAIN
from protocol.bounds import MAX_FRAME_BYTES

HIGH_WATER = 1024
"""Messages that wait on each side before `LinkFull`."""
CURVE_BYTES = 33
"""What CURVE adds to a frame (ZeroMQ RFC 26, "MESSAGE command"): a name, a nonce, flags and the authenticator."""
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


def configure(socket: "zmq.Socket[bytes]", endpoint: str, keys: CurveKeys | None, bind: bool) -> None:
    """Set a link's socket up, before it binds or connects. Raises `zmq.ZMQError` for keys that are none."""
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES + (0 if keys is None else CURVE_BYTES))
    if not bind:
        # In effect never: a new connection would hide that messages were lost. Not -1, which makes libzmq throw
        # away what has arrived and was not read yet when the connection ends.
        socket.setsockopt(zmq.RECONNECT_IVL, NEVER_MS)
        if endpoint.startswith("tcp:"):
            socket.setsockopt(zmq.IPV6, 1)
            socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    if bind:
        socket.setsockopt_string(zmq.ZAP_DOMAIN, DOMAIN)
    if keys is not None:
        socket.setsockopt_string(zmq.CURVE_PUBLICKEY, keys.public)
        socket.setsockopt_string(zmq.CURVE_SECRETKEY, keys.secret)
        if bind:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
        else:
            socket.setsockopt_string(zmq.CURVE_SERVERKEY, keys.server)
    if bind:
        try:
            # Other users' processes are turned away by libzmq, whatever the folder's mode.
            socket.setsockopt(zmq.IPC_FILTER_UID, os.getuid())
        except zmq.ZMQError:
            pass  # a libzmq or a system without peer credentials: the folder alone keeps them out
