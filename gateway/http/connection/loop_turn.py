"""Time that one turn of the event loop may take."""

import asyncio
from time import perf_counter

LONGEST_S = 0.008


class LoopTurn:
    """Yields to the event loop when the work since the last yield has taken `LONGEST_S`.

    A read of 64 KiB can hold thousands of frames or chunks. Hypercorn handles all of them in one turn, for which no
    other client is served.
    """

    def __init__(self) -> None:
        self._began = perf_counter()

    async def pause(self) -> None:
        """Yield if it is time to."""
        if perf_counter() - self._began > LONGEST_S:
            await asyncio.sleep(0)
            self._began = perf_counter()
