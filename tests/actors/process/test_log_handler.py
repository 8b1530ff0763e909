"""Log lines whose reader stands still for a while."""

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import structlog

from actors.process import log_handler
from actors.process.log_handler import LogHandler

FULL = 400
"""Lines of 1 KiB, of which a pipe takes fewer."""


@dataclass
class Piped:
    """A handler that writes to a pipe, and the other end."""

    handler: LogHandler
    reader: int

    def log(self, *texts: str) -> None:
        for text in texts:
            self.handler.handle(logging.LogRecord("n", logging.INFO, "", 0, text, None, None))

    def read_until(self, last: str) -> list[str]:
        """The lines up to this one."""
        data = b""
        while not data.endswith(f"{last}\n".encode()):
            data += os.read(self.reader, 1 << 16)
        return data.decode().splitlines()


@pytest.fixture
def piped() -> Iterator[Piped]:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        yield Piped(LogHandler(stream), reader)
    os.close(reader)


def test_a_reader_that_stands_still_holds_nobody_up_and_gets_every_line_later(piped: Piped) -> None:
    texts = [f"{number} {'x' * 1024}" for number in range(FULL)]
    piped.log(*texts)  # would never return
    assert piped.read_until(texts[-1]) == texts
    piped.log("last")
    assert piped.read_until("last") == ["last"]


def test_a_line_is_there_when_the_call_returns(piped: Piped) -> None:
    piped.log("a", "b\ud800")
    assert os.read(piped.reader, 100) == b"a\nb\\ud800\n"


def test_what_waits_is_bounded_and_what_was_left_out_is_counted(piped: Piped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_handler, "MAX_WAITING_BYTES", 100 * 1024)
    texts = [f"{number} {'x' * 1024}" for number in range(FULL)]
    with structlog.testing.capture_logs() as logs:
        piped.log(*texts)
        thread = piped.handler._thread
        assert thread is not None
        kept = FULL - piped.handler._left_out
        assert piped.read_until(texts[kept - 1]) == texts[:kept]
        thread.join()
    assert logs == [{"event": "log_lines_left_out", "log_level": "warning", "lines": FULL - kept}]
    assert 100 <= kept < FULL


def test_the_end_waits_for_a_reader_but_not_for_long(piped: Piped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_handler, "LAST_S", 0.05)
    piped.log(*("x" * 1024 for _ in range(FULL)))
    began = time.monotonic()
    piped.handler.flush()
    assert 0.05 <= time.monotonic() - began < 5


def test_lines_that_nobody_can_read_are_lost(piped: Piped) -> None:
    piped.log("x")
    os.close(piped.reader)
    piped.reader = os.open(os.devnull, os.O_RDONLY)  # is closed in the end
    piped.log(*("x" * 1024 for _ in range(FULL)))
    assert piped.handler._thread is None
