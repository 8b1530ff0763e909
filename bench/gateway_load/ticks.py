"""The pace of the servers of `bench/gateway.py`. It runs in the environments of others: the standard library alone."""

import asyncio


class Ticks:
    """Wakes all streams once a step, `rate` times a second."""

    def __init__(self, rate: float) -> None:
        """A `rate` of 0 is as fast as possible."""
        self._rate = rate
        self._tick = asyncio.Event()

    async def run(self) -> None:
        """Wake the streams until it is cancelled. Returns at once if the rate is 0."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while self._rate:
            due = max(due + 1 / self._rate, loop.time())
            await asyncio.sleep(due - loop.time())
            tick, self._tick = self._tick, asyncio.Event()
            tick.set()

    async def next(self) -> None:
        """Wait for the next step."""
        if self._rate:
            await self._tick.wait()
        else:
            await asyncio.sleep(0)
