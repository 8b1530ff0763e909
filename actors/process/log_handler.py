"""Writes log lines to stderr, and never waits for their reader: a pipe may be full, a terminal stopped (Ctrl-S).

A log line is written on the event loop. If that waited for a reader that stands still, all streams would stand still.
"""

import logging
import os
import select
import threading
import time
from collections import deque
from typing import TextIO

import structlog

MAX_WAITING_BYTES = 1 << 20
"""Lines beyond these wait for their reader no more: they are left out and counted."""
LAST_S = 1.0
"""Time that the end of the process gives to lines that wait."""
_PART_BYTES = select.PIPE_BUF
"""A pipe that can be written to takes as many at once (poll(2))."""


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes each line at once, if it can be. Otherwise a thread, which runs only until all are written, writes it
    later. A line that the system refuses (nobody reads, a full disk) is lost."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._descriptor = _descriptor_of(stream)
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._left_out = 0
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`, which holds its lock."""
        if self._descriptor < 0:
            super().emit(record)
            return
        try:
            line = (self.format(record) + self.terminator).encode("utf-8", "backslashreplace")
        except Exception:  # noqa: BLE001  a value that cannot be formatted, as in `logging.StreamHandler`
            self.handleError(record)
            return
        if self._waiting and self._waiting_bytes + len(line) > MAX_WAITING_BYTES:
            self._left_out += 1
            return
        self._waiting.append(line)
        self._waiting_bytes += len(line)
        if self._thread is None:
            self._write()
            if self._waiting:
                self._write_later()

    def flush(self) -> None:
        """Write what waits, for at most `LAST_S` seconds. Called at the end of the process."""
        if self._descriptor < 0:
            super().flush()
            return
        with self._held():
            end = time.monotonic() + LAST_S
            while self._waiting and self._takes(max(0.0, end - time.monotonic())):
                self._write()

    def _write(self) -> None:
        """Write what is taken now."""
        while self._waiting and self._takes(0.0):
            line = self._waiting.popleft()
            try:
                written = os.write(self._descriptor, line[:_PART_BYTES])
            except OSError:
                written = len(line)
            self._waiting_bytes -= written
            if written < len(line):
                self._waiting.appendleft(line[written:])

    def _write_later(self) -> None:
        thread = threading.Thread(target=self._run, name="late-log", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return  # the limit of processes is reached: the next line tries again
        self._thread = thread

    def _run(self) -> None:
        while True:
            self._takes(None)
            with self._held():
                self._write()
                if not self._waiting:
                    self._thread = None
                    left_out, self._left_out = self._left_out, 0
                    break
        if left_out:
            structlog.get_logger("actors.process.log_handler").warning("log_lines_left_out", lines=left_out)

    def _takes(self, within_s: float | None) -> bool:
        """Wait until something can be written."""
        try:
            return bool(select.select([], [self._descriptor], [], within_s)[1])
        except (OSError, ValueError):
            return True  # it is closed, or cannot be asked about: the write tells

    def _held(self) -> threading.RLock:
        assert self.lock is not None, "made by `logging.Handler`"
        return self.lock


def _descriptor_of(stream: TextIO) -> int:
    """-1 for a stream of Python alone, as tests capture."""
    try:
        return stream.fileno()
    except (AttributeError, OSError, ValueError):
        return -1
