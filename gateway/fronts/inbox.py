"""Frames that arrived on a front's link: a bounded number of them is handled in one turn of the event loop."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from gateway.fronts.frames import ToFront, ToGateway

FRONT_FRAMES = 256
"""Frames that a front handles in one turn. Each may wake a task, which takes some 20 us."""
GATEWAY_FRAMES = 64
"""Frames of all fronts together that the gateway handles in one turn. Each may begin a request, which takes some
200 us."""

F = TypeVar("F", ToGateway, ToFront)


class FrameInbox(Generic[F]):
    """Hands frames on, in order. The windows of the exchanges bound what waits."""

    def __init__(self, handle: Callable[[F], None], turn_frames: int) -> None:
        """`turn_frames`: maximum number of frames in one turn."""
        self._handle: Callable[[F], None] = handle
        self._turn_frames = turn_frames
        self._frames: deque[F] = deque()
        self._left = turn_frames
        self._next_turn: asyncio.Handle | None = None

    def add(self, frames: Sequence[F]) -> None:
        """Handle frames now, as far as this turn has room for them and no others wait."""
        self._frames.extend(frames)
        self._run()

    def close(self) -> None:
        """Discard what waits."""
        self._frames.clear()

    def _run(self) -> None:
        if self._frames and self._next_turn is None:
            self._next_turn = asyncio.get_running_loop().call_soon(self._begin_turn)
        while self._frames and self._left:
            self._left -= 1
            self._handle(self._frames.popleft())

    def _begin_turn(self) -> None:
        self._next_turn = None
        self._left = self._turn_frames
        self._run()
