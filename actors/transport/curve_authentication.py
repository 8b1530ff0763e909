"""Authentication of CURVE links: libzmq asks about each client's key, and an allow-list answers.

The question and the answer are those of ZAP (ZeroMQ RFC 27), over a socket inside this process.
"""

import asyncio
from collections.abc import Collection

import zmq
from zmq.utils import z85

ENDPOINT = "inproc://zeromq.zap.01"
"""The address that libzmq asks, by the RFC."""
DOMAIN = "baton"
_VERSION = b"1.0"
_ADMITTED = b"200"
_FRAMES = 7
"""Frames of a request about a CURVE client: version, id, domain, address, identity, mechanism, key."""


class Admission:
    """Answers for all sockets of one context, on the event loop that it was made on, before they are bound."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", allowed: Collection[str] | None) -> None:
        """`allowed` are public keys in Z85 text; any other client is rejected before it can send a frame. None is
        for a socket without keys, and admits every client that can be asked about: libzmq takes a client of ZMTP 1.0 or
        2.0, or any bytes for one, only where nobody is to be asked (`handshake_v1_0_unversioned`)."""
        self._allowed = None if allowed is None else frozenset(allowed)
        self._loop = asyncio.get_running_loop()
        self._socket = context.socket(zmq.REP)
        self._socket.bind(ENDPOINT)
        self._descriptor = int(self._socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._answer)
        self._loop.call_soon(self._answer)  # the descriptor reports changes alone

    def close(self) -> None:
        """Answer no more; before the context ends."""
        if not self._socket.closed:
            self._loop.remove_reader(self._descriptor)
            self._socket.close(0)

    def _answer(self) -> None:
        while not self._socket.closed and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            reply = answer(self._socket.recv_multipart(zmq.NOBLOCK), self._allowed)
            self._socket.send_multipart(reply, zmq.NOBLOCK)


def key_of(frame: zmq.Frame) -> str:
    """The key, in Z85 text, under which the client that sent a frame was admitted; empty of one without keys, and where
    nobody is asked: at the connecting side."""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return ""


def answer(request: list[bytes], allowed: Collection[str] | None) -> list[bytes]:
    """The reply to one ZAP request: version, id, status, text, user, metadata. Pure."""
    number = request[1] if len(request) > 1 else b""
    if allowed is None:
        if len(request) != _FRAMES - 1 or request[0] != _VERSION or request[5] != b"NULL":
            return [_VERSION, number, b"400", b"only clients without keys are admitted", b"", b""]
        return [_VERSION, number, _ADMITTED, b"OK", b"", b""]
    if len(request) != _FRAMES or request[0] != _VERSION or request[5] != b"CURVE" or len(request[6]) != 32:
        return [_VERSION, number, b"400", b"only CURVE clients are admitted", b"", b""]
    key = z85.encode(request[6]).decode("ascii")
    if key not in allowed:
        return [_VERSION, number, b"400", b"the key is not on the allow-list", b"", b""]
    return [_VERSION, number, _ADMITTED, b"OK", key.encode("ascii"), b""]
