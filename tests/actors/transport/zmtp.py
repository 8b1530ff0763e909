"""A peer that speaks ZMTP 3.0 (ZeroMQ RFC 23) by hand: it does each step of a handshake when a test wants it to."""

import asyncio
import socket

from actors.transport.message import number_frame

SIGNATURE = b"\xff\0\0\0\0\0\0\0\1\x7f"
GREETING = SIGNATURE + b"\3\0NULL" + bytes(16) + b"\0" + bytes(31)
"""With which a handshake begins."""
_READY = b"\5READY" + b"\x0bSocket-Type" + (4).to_bytes(4, "big") + b"PAIR"
HANDSHAKE = GREETING + bytes([4, len(_READY)]) + _READY
"""All that this side has to say in it."""


async def shake_hands(connection: socket.socket) -> None:
    """The whole handshake. A message before the other side is ready would break it off."""
    connection.setblocking(False)
    connection.sendall(HANDSHAKE)
    received = b""
    while b"READY" not in received:
        data = await asyncio.get_running_loop().sock_recv(connection, 4096)
        assert data, "it hung up"
        received += data


def message(number: int, text: bytes) -> bytes:
    """One message of one frame, with its number, as a link sends it."""
    return bytes([1, 8]) + number_frame(number) + bytes([0, len(text)]) + text
