"""Reads the format and the sides of an image from the beginning of its file, without decoding pixels.

The list of formats is closed, and their first bytes decide: PNG (RFC 2083), JPEG (ITU T.81, Annex B), GIF (GIF89a) and
WebP (RFC 9649). No work grows with the file: what comes before the sides is skipped in a bounded number of steps.
"""

import struct
from typing import NamedTuple
from zlib import crc32

from protocol.request import ImageFormat

MAX_SEGMENTS = 1024
"""Segments of a JPEG, or blocks of a GIF, before the pixels. Real files have some dozen; profiles and thumbnails are
split into segments of 64 KiB."""
MAX_SUB_BLOCKS = 8_192
"""Sub-blocks of all blocks of a GIF before the pixels: of up to 255 bytes each, and passed in 1 ms."""
_PNG = b"\x89PNG\r\n\x1a\n"
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of a frame header, which has the sides."""
_ALONE = frozenset({0x01, *range(0xD0, 0xD8)})
"""Markers without a segment."""
_SOI, _EOI, _SOS = 0xD8, 0xD9, 0xDA


class HeaderInvalid(ValueError):
    """Raised for a file whose header has no known format, is truncated or contradicts itself; the message says why."""


class ImageHeader(NamedTuple):
    """The header of an image."""

    format: ImageFormat
    width: int
    height: int
    """Sides in pixels, as the file stores them."""


def sniff(data: bytes) -> ImageFormat:
    """Return the format that the first bytes, 16 or more of them, are of. Raises `HeaderInvalid`."""
    if data.startswith(_PNG):
        return "png"
    if data.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    raise HeaderInvalid("it is not a PNG, JPEG, WebP or GIF file")


def read_header(data: bytes) -> ImageHeader:
    """Read the header of a file. Raises `HeaderInvalid`."""
    kind = sniff(data)
    try:
        width, height = _SIDES[kind](data)
    except (struct.error, IndexError) as error:
        raise HeaderInvalid(f"its {kind.upper()} header is truncated") from error
    return ImageHeader(kind, width, height)


def _png(data: bytes) -> tuple[int, int]:
    size, kind, width, height = struct.unpack_from(">I4sII", data, len(_PNG))
    begin = len(_PNG) + 4
    (checksum,) = struct.unpack_from(">I", data, begin + 17)
    if size != 13 or kind != b"IHDR" or crc32(data[begin : begin + 17]) != checksum:
        raise HeaderInvalid("its PNG header is damaged")
    return width, height


def _jpeg(data: bytes) -> tuple[int, int]:
    """Read all segments before the pixels: of two frame headers, decoders would use either."""
    at, sides = 2, None
    for _ in range(MAX_SEGMENTS):
        if data[at] != 0xFF:
            raise HeaderInvalid("its JPEG header is damaged")
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker in _ALONE:
            at += 2
            continue
        if marker in (_SOI, _EOI, 0x00):
            raise HeaderInvalid("its JPEG header is damaged")
        if marker == _SOS:
            if sides is None:
                raise HeaderInvalid("its JPEG header has no sides")
            return sides
        (size,) = struct.unpack_from(">H", data, at + 2)
        if size < 2:
            raise HeaderInvalid("its JPEG header is damaged")
        if marker in _SOF:
            if sides is not None:
                raise HeaderInvalid("its JPEG header has sides twice")
            height, width = struct.unpack_from(">HH", data, at + 5)
            sides = (width, height)
        at += 2 + size
    raise HeaderInvalid(f"its JPEG header has over {MAX_SEGMENTS} segments")


def _gif(data: bytes) -> tuple[int, int]:
    """Read up to the first frame: decoders enlarge the image to one that is larger than the screen."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    at = 13 + _table(flags)
    remaining = MAX_SUB_BLOCKS
    for _ in range(MAX_SEGMENTS):
        kind = data[at]
        if kind == 0x2C:
            left, top, frame_width, frame_height = struct.unpack_from("<HHHH", data, at + 1)
            return max(width, left + frame_width), max(height, top + frame_height)
        if kind != 0x21:
            raise HeaderInvalid("its GIF header is damaged")
        at += 2
        while size := data[at]:
            remaining -= 1
            if remaining < 0:
                raise HeaderInvalid(f"its GIF header has over {MAX_SUB_BLOCKS} sub-blocks")
            at += 1 + size
        at += 1
    raise HeaderInvalid(f"its GIF header has over {MAX_SEGMENTS} blocks")


def _table(flags: int) -> int:
    """Return the bytes of the table of colours that follows."""
    return 3 << ((flags & 0x07) + 1) if flags & 0x80 else 0


def _webp(data: bytes) -> tuple[int, int]:
    (size,) = struct.unpack_from("<I", data, 4)
    if size + 8 > len(data):
        raise HeaderInvalid("its WEBP header is truncated")
    chunk, payload = data[12:16], data[20:30]
    if chunk == b"VP8X":
        return 1 + int.from_bytes(_whole(payload[4:7], 3), "little"), 1 + int.from_bytes(
            _whole(payload[7:10], 3), "little"
        )
    if chunk == b"VP8 ":
        if payload[3:6] != b"\x9d\x01\x2a":
            raise HeaderInvalid("its WEBP header is damaged")
        width, height = struct.unpack_from("<HH", payload, 6)
        return width & 0x3FFF, height & 0x3FFF
    if chunk == b"VP8L":
        mark, bits = struct.unpack_from("<BI", payload)
        if mark != 0x2F:
            raise HeaderInvalid("its WEBP header is damaged")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    raise HeaderInvalid("its WEBP header is damaged")


def _whole(data: bytes, size: int) -> bytes:
    if len(data) < size:
        raise IndexError
    return data


_SIDES = {"png": _png, "jpeg": _jpeg, "gif": _gif, "webp": _webp}
