"""The file of a block: a header, then the rows. A damaged file is not read."""

import os
import struct
import zlib
from pathlib import Path

from workers.prefix_store.block import KEY_BYTES, RowBlock

_MAGIC = b"baton kv"
_FIELDS = struct.Struct(f"<8s{KEY_BYTES}s{KEY_BYTES}sQI")
_CHECKSUM = struct.Struct("<I")
HEADER_BYTES = 64
"""The rows behind it are aligned."""
PAGE = 4096


def header(block: RowBlock, rows: bytes | memoryview) -> bytes:
    """Return the header of a block: its keys, the size and the checksum of its rows, and its own checksum."""
    fields = _FIELDS.pack(_MAGIC, block.key, block.parent, len(rows), zlib.crc32(rows))
    return (fields + _CHECKSUM.pack(zlib.crc32(fields))).ljust(HEADER_BYTES, b"\0")


def stored_size(rows: int) -> int:
    """Return the bytes that a file with so many bytes of rows takes: whole pages."""
    return -(-(HEADER_BYTES + rows) // PAGE) * PAGE


def read_entry(file: Path, block: RowBlock, buffer: bytearray) -> memoryview | None:
    """Like `load_entry`, and None for a file that cannot be read."""
    try:
        return load_entry(file, block, buffer)
    except OSError:
        return None


def load_entry(file: Path, block: RowBlock, buffer: bytearray) -> memoryview | None:
    """Read the rows of a block into a buffer; None unless the file has exactly these rows, in a valid entry. Raises
    `OSError`.

    The file is read and not mapped: a disk that fails raises an error for a read, and ends the process for a map.
    """
    with file.open("rb", buffering=0) as source:
        size = os.fstat(source.fileno()).st_size
        if size != HEADER_BYTES + len(buffer):
            return None
        head = bytearray(HEADER_BYTES)
        if os.preadv(source.fileno(), [head, buffer], 0) != size:
            return None
    rows = memoryview(buffer)
    return rows if head == header(block, rows) else None
