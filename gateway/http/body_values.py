"""Bounds the number of JSON values in a body before it is decoded: the decoder checks lengths after it has made all of
them, without a pause. Eight megabytes of empty arrays take it 0.8 s."""

import anyio.lowlevel

from gateway.errors import RefusalCode, RequestError

NESTED = 4
"""An array, an object and a member of an object count as so many values: they take as much longer than a number."""
MIN_BYTES_EACH = 1 / NESTED
"""A smaller body cannot hold more: each byte begins one of them at most."""
CHUNK_BYTES = 256 * 1024
"""Bytes that are scanned in one turn of the event loop."""
_OTHERS = bytes(set(range(256)) - set(b",:[{"))
_NEW = bytes(set(range(256)) - set(b":[{"))


async def check_values(raw: bytes, bound: int) -> None:
    """Raise `RequestError` for a body of more than `bound` values. Others are served meanwhile."""
    if len(raw) <= bound * MIN_BYTES_EACH:
        return
    scanner = ValueCounter()
    for begin in range(0, len(raw), CHUNK_BYTES):
        scanner.feed(raw[begin : begin + CHUNK_BYTES])
        if scanner.values > bound:
            text = (
                f"the body has over {bound} JSON values (max_body_values); an array, an object and each of its "
                f"members counts as {NESTED}"
            )
            raise RequestError(RefusalCode.BODY_TOO_LARGE, text)
        await anyio.lowlevel.checkpoint()


class ValueCounter:
    """Counts the values of a JSON text by what stands between them, outside of strings. Up to the first error in the
    text the count is exact but for one, and that is where a decoder stops."""

    def __init__(self) -> None:
        self.values = 0
        self._in_string = False
        self._rest = b""
        """A backslash at the end of the last chunk, which belongs to the next character."""

    def feed(self, chunk: bytes) -> None:
        """Count the values of the next chunk."""
        text = self._rest + chunk
        escapes = len(text) - len(text.rstrip(b"\\"))
        end = len(text) - escapes % 2
        self._rest, text = text[end:], text[:end]
        parts = text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(parts[self._in_string :: 2])
        self._in_string ^= len(parts) % 2 == 0
        between = outside.translate(None, _OTHERS)
        self.values += len(between) + (NESTED - 1) * len(between.translate(None, b","))
