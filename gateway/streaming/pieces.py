"""Large bodies in pieces, so that no turn of the event loop renders more than one."""

from collections.abc import Iterable, Iterator

PIECE_BYTES = 64 * 1024
"""Bytes of a piece, but for the last part that is joined to it. A body of one piece is sent with its length."""


def joined(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Join parts of a body to pieces. At least one, which may be empty."""
    piece: list[bytes] = []
    size = 0
    for part in parts:
        piece.append(part)
        size += len(part)
        if size >= PIECE_BYTES:
            yield b"".join(piece)
            piece, size = [], 0
    if piece:
        yield b"".join(piece)
