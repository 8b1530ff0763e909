"""HTTP/2 frames that one connection may send. Pure: reads the headers of frames, and counts."""

import struct
from collections.abc import Iterator
from enum import IntEnum

from actors.transport.rate_limit import TokenBucket

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PIECE_BYTES = 4096
PIECE_FRAMES = 64
_HEAD = struct.Struct(">HBBBL")
_END_STREAM = 0x1
_ACK = 0x1
_PADDED = 0x8
_END_HEADERS = 0x4


class Frame(IntEnum):
    """Frames of RFC 9113 that are counted differently from all others."""

    DATA = 0x0
    HEADERS = 0x1
    RST_STREAM = 0x3
    SETTINGS = 0x4
    CONTINUATION = 0x9


class OverBudget(Exception):
    """Raised when a client sends more frames of one kind than it may; the message names it."""


class FrameBudget:
    """Divides what a client sends into pieces that are cheap to handle, and refuses floods of frames.

    nghttp2 has bounds of this kind (`nghttp2_option_set_stream_reset_rate_limit`, `..._glitch_rate_limit`). h2 and
    Hypercorn 0.18 have none: CVE-2023-44487 (rapid reset), CVE-2025-8671 (made you reset), CVE-2019-9512 to 9518 and
    CVE-2024-27983 (CONTINUATION).
    """

    def __init__(self, max_header_bytes: int) -> None:
        """`max_header_bytes`: of one block of headers, compressed."""
        self._max_header_bytes = max_header_bytes
        self._resets = TokenBucket(33, 1000)
        self._control = TokenBucket(33, 1000)
        self._small = TokenBucket(1000, 10_000)
        self._skip = len(PREFACE)
        """Bytes until the next frame begins."""
        self._head = b""
        """The part of a frame's header that has arrived."""
        self._highest = 0
        """The highest stream for which there were headers."""
        self._header_bytes = 0

    def pieces(self, data: bytes, now: float) -> Iterator[bytes]:
        """Parts of `data`, in order. Raises `OverBudget`; `now` is a monotonic time in seconds."""
        start = at = frames = 0
        while at < len(data):
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
                at += step
                continue
            missing = 9 - len(self._head)
            self._head += data[at : at + missing]
            at += missing
            if len(self._head) < 9:
                break
            self._count(self._head, now)
            self._head = b""
            frames += 1
            if at - start >= PIECE_BYTES or frames >= PIECE_FRAMES:
                yield data[start:at]
                start, frames = at, 0
        if start < len(data):
            yield data[start:]

    def _count(self, head: bytes, now: float) -> None:
        high, low, kind, flags, stream = _HEAD.unpack(head)
        size = self._skip = (high << 8) | low
        stream &= 0x7FFFFFFF
        match kind:
            case Frame.DATA:
                self._count_data(1 if flags & _PADDED else 1 - size / 32, now)
                if not size and not flags & _END_STREAM:
                    self._spend_control(1, now)
            case Frame.HEADERS:
                self._header_bytes = 0
                if stream > self._highest:
                    self._highest = stream
                    self._control.earn(8)  # some clients open the stream's window, or set its priority
                else:
                    self._spend_control(1, now)
                self._add_headers(size, flags)
            case Frame.CONTINUATION:
                self._spend_control(1, now)
                self._add_headers(size, flags)
            case Frame.RST_STREAM:
                self.count_reset(now)
            case Frame.SETTINGS:
                self._spend_control(1 if flags & _ACK else 1 + size // 6, now)
            case _:
                self._spend_control(1, now)

    def _count_data(self, small: float, now: float) -> None:
        """Count a DATA frame by how small it is; a large one makes up for small ones."""
        if small < 0:
            self._small.earn(-small)
        elif not self._small.take(small, now):
            raise OverBudget("small or padded DATA frames")

    def _spend_control(self, count: int, now: float) -> None:
        if not self._control.take(count, now):
            raise OverBudget("control frames")

    def _add_headers(self, size: int, flags: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self._max_header_bytes:
            raise OverBudget("bytes of headers")
        if flags & _END_HEADERS:
            self._header_bytes = 0

    def count_reset(self, now: float) -> None:
        """A stream was reset by the server, for an error of the client. Raises `OverBudget`."""
        if not self._resets.take(1, now):
            raise OverBudget("streams were reset")

    def sent(self, size: int) -> None:
        """A DATA frame was sent, for which the client will open its windows."""
        self._control.earn(min(4.0, size / 32))
