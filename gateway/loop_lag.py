"""Measures how long the event loop keeps its callbacks waiting."""

import asyncio
from collections import deque

import anyio

TICK_S = 0.25
"""Each tick wakes an idle process, which takes some 0.1 ms of CPU time."""
WINDOW_S = 60.0
"""The time for which a lag is reported: as long as Prometheus waits between two scrapes by default."""


class LoopLag:
    """Sets a timer again and again, and notes how late it fires. A turn of the loop that is longer than a tick is
    always noticed, with less than a tick missing; a shorter one only if the timer is due in it.

    A callback needs one turn of the loop for each tick; a task that sleeps would need two.
    """

    def __init__(self) -> None:
        self._maxima: deque[tuple[float, float]] = deque()
        """Lags and when they were noted: those that no later one has exceeded, so the longest is in front."""

    def longest(self) -> float:
        """The longest lag in seconds of the last `WINDOW_S`. A call changes nothing."""
        self._forget(asyncio.get_running_loop().time())
        return self._maxima[0][1] if self._maxima else 0.0

    async def run(self) -> None:
        """Measure until it is cancelled."""
        self._set_timer(asyncio.get_running_loop())
        try:
            await anyio.sleep_forever()
        finally:
            self._timer.cancel()

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + TICK_S
        self._timer = loop.call_at(due, self._tick, loop, due)

    def _tick(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        now = loop.time()
        while self._maxima and self._maxima[-1][1] <= now - due:
            self._maxima.pop()
        self._maxima.append((now, now - due))
        self._forget(now)
        self._set_timer(loop)

    def _forget(self, now: float) -> None:
        while self._maxima and self._maxima[0][0] <= now - WINDOW_S:
            self._maxima.popleft()
