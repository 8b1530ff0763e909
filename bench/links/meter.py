"""The measurement that every link goes through: round trips of a small message, then a stream of `Step` frames."""

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from protocol.codec import decode_event
from protocol.events import Delta, Gauges, Step

SMALL = b"x" * 32
GO, BYE = b"go", b"bye"
"""Messages with which the parent starts the stream and ends the child."""
DELTAS = 64
STEP = Step(
    deltas=tuple(Delta(stream=10_000 + row, tokens=(1_000 + row,), text=" token") for row in range(DELTAS)),
    gauges=Gauges(slots_active=DELTAS, kv_tokens=12_345, steps=54_321, decode_tokens=3_456_789),
)
WARM_UP = 200
"""Round trips that do not count."""
TIMEOUT_MS = 20_000
"""The longest wait for one message."""
CHILDREN = Path(__file__).with_name("children.py")

Figures = dict[str, float]


class ChildSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The system that a child runs."""

    kind: Literal["link", "zmq", "zmq_asyncio", "reader", "pipe"]
    address: str
    """An endpoint of ZeroMQ, or the number of a file descriptor."""
    frames: int

    def start(self, pass_fds: Sequence[int] = ()) -> "subprocess.Popen[bytes]":
        """Start the child, which inherits the descriptors `pass_fds`."""
        command = [sys.executable, str(CHILDREN), msgspec.json.encode(self).decode()]
        return subprocess.Popen(command, pass_fds=pass_fds)


def decoded_tokens(frame: bytes) -> int:
    """Decode a step and count its token events."""
    event = decode_event(frame)
    assert isinstance(event, Step)
    return len(event.deltas)


def figures(times: list[float], tokens: int, seconds: float) -> Figures:
    """The two figures of a link: `times` are the seconds of its round trips."""
    return {"trip_us": statistics.median(times[WARM_UP:]) * 1e6, "tokens_s": tokens / seconds}


class Meter:
    """The parent's side as a state machine: it decides what to send after each message."""

    def __init__(self, trips: int, frames: int) -> None:
        self._trips = trips + WARM_UP
        self._left = frames
        self._times: list[float] = []
        self._sent = 0.0
        self._first = 0.0
        self._tokens = 0
        self.figures: Figures = {}

    def receive(self, frame: bytes) -> bytes | None:
        """Returns the answer to a message, b"" if none is due, or None after the last message."""
        now = time.perf_counter()
        if self._sent and len(self._times) < self._trips:
            self._times.append(now - self._sent)
        if len(self._times) < self._trips:
            self._sent = time.perf_counter()
            return SMALL
        if self._sent:
            self._sent = 0.0
            return GO
        if self._first:
            self._tokens += decoded_tokens(frame)
        else:
            self._first = now
        self._left -= 1
        if self._left:
            return b""
        self.figures = figures(self._times, self._tokens, time.perf_counter() - self._first)
        return None
