"""A program on a pseudo-terminal: wait for output, and type."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

DEADLINE_S = 100.0


class Terminal:
    """Owns the program and its terminal. Both end when the context is left."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-P", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, **environment, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
            start_new_session=True,
        )
        os.close(slave)
        self._seen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._master)

    def wait_for(self, words: str) -> str:
        """Return the output up to the end of `words`. Later output is kept for the next wait."""
        self._read_until(lambda: words in self._seen, words)
        before, found, self._seen = self._seen.partition(words)
        return before + found

    def wait_for_much(self, characters: int) -> None:
        """Discard this many characters of output."""
        self._read_until(lambda: len(self._seen) >= characters, f"{characters} characters")
        self._seen = self._seen[characters:]

    def _read_until(self, satisfied: Callable[[], bool], wanted: str) -> None:
        until = time.monotonic() + DEADLINE_S
        while not satisfied():
            ready, _, _ = select.select([self._master], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise AssertionError(f"{wanted!r} did not come, only {self._seen[-2000:]!r}")
            self._read(wanted)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        """Send SIGINT, as a terminal does at Ctrl-C if the program reads no keys."""
        os.killpg(self._process.pid, signal.SIGINT)

    def exit_status(self) -> int:
        """Read to the end of the output and return the exit status."""
        try:
            while select.select([self._master], [], [], DEADLINE_S)[0]:
                self._read("the end")
        except (OSError, AssertionError):  # Linux says the end of a terminal as an error
            pass
        return self._process.wait(DEADLINE_S)

    def _read(self, words: str) -> None:
        try:
            data = os.read(self._master, 65536)
        except OSError as error:
            raise AssertionError(f"it ended before {words!r}: {self._seen!r}") from error
        if not data:
            raise AssertionError(f"it ended before {words!r}: {self._seen!r}")
        self._seen += data.decode(errors="replace")
