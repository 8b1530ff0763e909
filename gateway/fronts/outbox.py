"""Frames on their way to the other end of a front's link: those of one turn of the event loop are one message."""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar

from actors.transport.link import Link, LinkClosed
from gateway.fronts.frames import ToFront, ToGateway, encode_frames

MESSAGE_BYTES = 128 * 1024
"""Bytes of bodies after which a message ends."""
MESSAGE_FRAMES = 128
"""Frames after which a message ends."""

F = TypeVar("F", ToGateway, ToFront)


class FrameOutbox(Generic[F]):
    """Collects frames, and sends them in order while `run` runs. The windows of the exchanges bound what waits."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._frames: list[F] = []
        self._bytes = 0
        self._messages: deque[bytes] = deque()
        self._filled = asyncio.Event()

    def put(self, frame: F, size: int = 0) -> None:
        """Send a frame with so many bytes of a body."""
        self._frames.append(frame)
        self._bytes += size
        if self._bytes >= MESSAGE_BYTES or len(self._frames) >= MESSAGE_FRAMES:
            self._seal()
        self._filled.set()

    async def run(self) -> None:
        """Send until the link is closed, or this is cancelled."""
        with suppress(LinkClosed):  # whose owner is notified
            while True:
                await self._filled.wait()
                self._filled.clear()
                await self._send()

    async def flush(self) -> None:
        """Send what is left when `run` has ended."""
        with suppress(LinkClosed):
            await self._send()

    async def _send(self) -> None:
        """Raises `LinkClosed`."""
        self._seal()
        while self._messages:
            await self._link.send([self._messages[0]])
            self._messages.popleft()

    def _seal(self) -> None:
        if self._frames:
            self._messages.append(encode_frames(self._frames))
            self._frames, self._bytes = [], 0
