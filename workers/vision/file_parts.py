"""Removes from image files what no pixel depends on, before Pillow reads them.

Pillow takes 5 to 60 us for each chunk or segment, and for each entry of metadata: a file of 12 MB can have a million.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

MAX_PARTS = 16_384
"""Chunks of a PNG or WebP file, or segments of a JPEG before its pixels. Writers split pixels into chunks of 8 KiB or
more: 12 MiB are 1,536."""
ORIENTATION = 0x0112
"""The tag of EXIF."""
_PNG = b"\x89PNG\r\n\x1a\n"
_PIXELS = (b"IDAT", b"IEND")
_BEFORE_PIXELS = (b"IHDR", b"PLTE", b"tRNS")
_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_TEXT_KEYS = (b"XML:com.adobe.xmp\0", b"Raw profile type exif\0")
_EXIF, _XMP = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"
_SOS = 0xDA
_METADATA = {*range(0xE1, 0xF0), 0xFE} - {0xEE}
"""Segments of applications and comments, without those of JFIF and Adobe, which state the storage of colours."""
_ALONE = {0x01, *range(0xD0, 0xD9)}
"""Markers without a segment."""
_XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
_VALUES = {3: 2, 4: 4}
"""Bytes of a value by its type in EXIF: those that Pillow reads as a number."""


class FileParts(NamedTuple):
    """An image file, and its metadata that were removed."""

    data: bytes
    """The file without metadata, as Pillow may read it."""
    exif: bytes = b""
    xmp: bytes = b""


class TooManyParts(ValueError):
    """Raised for a file of more than `MAX_PARTS` parts; the message has the bound."""


def without_metadata(data: bytes, format: str) -> FileParts:
    """Remove metadata. What has to be there for the orientation stays in a PNG file, before its pixels, and in WebP and
    GIF files, where it costs nothing. Raises `ValueError` for a damaged JPEG header, and `TooManyParts`."""
    if format == "png":
        return FileParts(_bare_png(data))
    if format == "jpeg":
        return _bare_jpeg(data)
    if format == "webp":
        for _ in _chunks(data, 12, "little", kind_at=0, padded=True):
            pass
    return FileParts(data)


def orientation(parts: FileParts, info: Mapping[Any, Any]) -> int:
    """Return how a picture is turned, 1 to 8, by what Pillow has found (`Image.info`) and what was removed: EXIF first,
    then XMP, as Pillow's `getexif`. 1 if there is no valid one."""
    exif = parts.exif or info.get("exif")
    if exif is None and isinstance(profile := info.get("Raw profile type exif"), str):
        try:
            exif = bytes.fromhex("".join(profile.split("\n")[3:]))
        except ValueError:
            exif = None
    found = _in_exif(exif or b"")
    if found is None:
        xmp = parts.xmp or info.get("XML:com.adobe.xmp") or info.get("xmp") or b""
        match = _XMP_ORIENTATION.search(xmp.encode("utf-8", "replace") if isinstance(xmp, str) else xmp)
        found = 1 if match is None else int(match[1])
    return found if 1 <= found <= 8 else 1


def _in_exif(exif: bytes) -> int | None:
    """Return the orientation in the first directory of EXIF (TIFF 6.0); None if there is none."""
    while exif.startswith(_EXIF):
        exif = exif[len(_EXIF) :]
    order: Literal["little", "big"] = "little" if exif[:2] == b"II" else "big"
    if exif[:4] not in (b"II*\0", b"MM\0*"):
        return None
    start = int.from_bytes(exif[4:8], order)
    count = int.from_bytes(exif[start : start + 2], order)
    for at in range(start + 2, min(start + 2 + 12 * count, len(exif) - 11), 12):
        if int.from_bytes(exif[at : at + 2], order) == ORIENTATION:
            size = _VALUES.get(int.from_bytes(exif[at + 2 : at + 4], order), 0)
            return int.from_bytes(exif[at + 8 : at + 8 + size], order)
    return None


def _bare_png(data: bytes) -> bytes:
    if not data.startswith(_PNG):
        return data  # which Pillow refuses
    before, pixels = [_PNG], []
    texts = list(_TEXT_KEYS)
    has_exif = False
    for kind, start, end in _chunks(data, len(_PNG), "big", kind_at=4):
        if kind in _PIXELS:
            pixels.append(data[start:end])
            if kind == b"IEND":
                break
        elif kind in _BEFORE_PIXELS and not pixels:
            before.append(data[start:end])
        elif kind == b"eXIf" and not has_exif:
            has_exif = True
            before.append(data[start:end])
        elif kind in _TEXTS:
            key = next((key for key in texts if data.startswith(key, start + 8)), None)
            if key is not None:
                texts.remove(key)
                before.append(data[start:end])
    return b"".join(before + pixels)


def _chunks(
    data: bytes, at: int, order: Literal["little", "big"], *, kind_at: int, padded: bool = False
) -> Iterator[tuple[bytes, int, int]]:
    """Iterate over the chunks of a file from a place on: the kind, and the first and the last place of each. Raises
    `TooManyParts`."""
    count = 0
    while len(data) - at >= 8:
        count += 1
        if count > MAX_PARTS:
            raise TooManyParts(f"it has more than {MAX_PARTS} chunks: save it anew")
        kind = data[at + kind_at : at + kind_at + 4]
        length = int.from_bytes(data[at + 4 - kind_at : at + 8 - kind_at], order)
        end = at + 8 + length + (length & 1 if padded else 4)
        yield kind, at, end
        at = end


def _bare_jpeg(data: bytes) -> FileParts:
    if not data.startswith(b"\xff\xd8\xff"):
        return FileParts(data)  # which Pillow refuses
    kept, exif, xmp = [data[:2]], b"", b""
    for marker, start, end in _segments(data):
        if marker == _SOS:
            return FileParts(b"".join((*kept, data[start:])), exif, xmp)
        if marker not in _METADATA:
            kept.append(data[start:end])
        elif marker == 0xE1 and not exif and data.startswith(_EXIF, start + 4):
            exif = data[start + 4 : end]
        elif marker == 0xE1 and not xmp and data.startswith(_XMP, start + 4):
            xmp = data[start + 4 + len(_XMP) : end]
    raise ValueError("it has no pixels")


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Iterate over the segments of a JPEG before its pixels, and the beginning of these: the marker, and the first and
    the last place of each. Raises `ValueError` for a damaged header, and `TooManyParts`."""
    at = 2
    for _ in range(MAX_PARTS):
        if len(data) - at < 4 or data[at] != 0xFF:
            raise ValueError("its header is damaged")
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        end = at + 2 if marker in _ALONE else at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        yield marker, at, end
        at = end
    raise TooManyParts(f"it has more than {MAX_PARTS} segments: save it anew")
