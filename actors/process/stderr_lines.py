"""A child's stderr split into lines, with a bound on their length and on how many are carried each second."""

MAX_LINE_BYTES = 8192
LINES_PER_SECOND = 200


class LineCutter:
    """Bytes in, lines out. Pure: the caller passes the time.

    A line over `max_bytes` is truncated there. More than `per_second` lines within one second are
    counted in `suppressed` and left out, so that a child that floods its stderr costs the reader little.
    """

    def __init__(self, max_bytes: int = MAX_LINE_BYTES, per_second: int = LINES_PER_SECOND) -> None:
        self._max_bytes = max_bytes
        self._per_second = per_second
        self._partial = b""
        self._window = float("-inf")
        self._in_window = 0
        self.suppressed = 0
        """Lines left out since `take_suppressed` was called."""

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """Lines completed by `data`, without their line ends. `now` is in seconds of any steady clock."""
        *complete, tail = data.split(b"\n")
        lines = []
        for piece in complete:
            line = self._add(piece)
            self._partial = b""
            if line:
                lines.append(line)
        self._partial = self._add(tail)
        return self._admit(lines, now)

    def finish(self, now: float) -> list[bytes]:
        """The last line, when the child left it without a line end."""
        lines = [self._partial] if self._partial else []
        self._partial = b""
        return self._admit(lines, now)

    def take_suppressed(self) -> int:
        """Return the number of lines left out since the last call."""
        count, self.suppressed = self.suppressed, 0
        return count

    def _add(self, piece: bytes) -> bytes:
        room = self._max_bytes - len(self._partial)
        return self._partial + piece[:room]

    def _admit(self, lines: list[bytes], now: float) -> list[bytes]:
        if now - self._window >= 1.0:
            self._window, self._in_window = now, 0
        room = self._per_second - self._in_window
        admitted = lines[:room]
        self._in_window += len(admitted)
        self.suppressed += len(lines) - len(admitted)
        return admitted
