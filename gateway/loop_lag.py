"""Measures how long the event loop keeps its callbacks waiting."""

import asyncio

import anyio

TICK_S = 0.25
"""Each tick wakes an idle process, which takes some 0.1 ms of CPU time."""


class LoopLag:
    """Sets a timer again and again, and notes how late it fires. A turn of the loop that is longer than a tick is
    always noticed, with less than a tick missing; a shorter one only if the timer is due in it.

    A callback needs one turn of the loop for each tick; a task that sleeps would need two.
    """

    def __init__(self) -> None:
        self._longest_s = 0.0

    def take(self) -> float:
        """The longest lag in seconds since the last call, which is a scrape."""
        longest, self._longest_s = self._longest_s, 0.0
        return longest

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
        self._longest_s = max(self._longest_s, loop.time() - due)
        self._set_timer(loop)
