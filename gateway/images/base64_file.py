"""Decodes files in base64 in pieces, between which others are served: 16 MiB take 25 ms and hold the interpreter."""

import binascii

import anyio.lowlevel

from gateway.errors import invalid
from gateway.images.header import HeaderInvalid, sniff
from gateway.images.sources import GivenImage

PIECE_CHARACTERS = 256 * 1024
"""A multiple of four."""


async def decode_base64(source: GivenImage) -> bytes:
    """Decode a file. One that is no image is refused after its first piece. Raises `RequestError`."""
    text, at, field = source.text, source.begin, source.field
    parts: list[bytes] = []
    rest = ""
    while at < len(text):
        piece = text[at : at + PIECE_CHARACTERS]
        at += PIECE_CHARACTERS
        if rest or "\n" in piece:
            piece = rest + piece.replace("\r", "").replace("\n", "")
        whole = len(piece) if at >= len(text) else len(piece) // 4 * 4
        piece, rest = piece[:whole], piece[whole:]
        try:
            part = binascii.a2b_base64(piece, strict_mode=True)
        except (binascii.Error, ValueError) as error:
            raise invalid(field, f"`{field}` is not base64: {error}") from error
        if parts and not _ended_whole(parts):
            raise invalid(field, f"`{field}` is not base64: there is data after its padding")
        if not parts:
            try:
                sniff(part)
            except HeaderInvalid as error:
                raise invalid(field, f"`{field}` is not an image: {error}") from error
        parts.append(part)
        if at < len(text):
            await anyio.lowlevel.checkpoint()
    return b"".join(parts)


def _ended_whole(parts: list[bytes]) -> bool:
    """The last piece had no padding."""
    return len(parts[-1]) % 3 == 0
