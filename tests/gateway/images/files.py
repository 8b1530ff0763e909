"""Image files for tests, made by Pillow or by hand."""

import base64
import io
import struct
from typing import Any
from zlib import crc32

from PIL import Image


def picture(kind: str, width: int = 5, height: int = 3, **options: Any) -> bytes:
    """A file of Pillow's."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 90)).save(file, kind, **options)
    return file.getvalue()


PNG = picture("png")


def png_header(width: int, height: int) -> bytes:
    """A PNG that has no more than its header."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", crc32(chunk))


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64_of(data)}"
