"""An event loop whose clock jumps to the next timer when there is nothing else to do: waits take no time."""

import asyncio
import selectors
from typing import Any


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout is not None and timeout > 0:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time is what its timers say. Not for tests with sockets: what is on its way would come late."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def hold(self, seconds: float) -> None:
        """Let time pass within a turn of the loop."""
        self._jumping.now += seconds


BACKEND: tuple[str, dict[str, Any]] = ("asyncio", {"loop_factory": VirtualLoop})
"""For an `anyio_backend` fixture."""
