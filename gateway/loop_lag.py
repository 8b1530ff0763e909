"""Measures how long the event loop keeps its callbacks waiting."""

import asyncio

TICK_S = 0.05


class LoopLag:
    """Sleeps again and again, and notes how late it wakes. A turn of the loop that is longer than a tick is always
    noticed, a shorter one mostly."""

    def __init__(self) -> None:
        self._longest_s = 0.0

    def take(self) -> float:
        """The longest lag in seconds since the last call, which is a scrape."""
        longest, self._longest_s = self._longest_s, 0.0
        return longest

    async def run(self) -> None:
        """Measure until it is cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + TICK_S
            await asyncio.sleep(TICK_S)
            self._longest_s = max(self._longest_s, clock() - due)
