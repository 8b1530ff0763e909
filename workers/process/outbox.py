"""Frames that wait to be sent. Usually there are none; if the gateway does not read, the engine is held back."""

from collections import deque
from collections.abc import Callable, Sequence

import anyio

from actors.transport.link import DRAIN_FRAMES, Link, LinkClosed, LinkFull
from protocol.codec import encode
from protocol.events import Event


class Outbox:
    """Sends at once while the link has room, and keeps the order when it has none.

    The outbox has no bound of its own. While it is `blocked`, its owner takes no output from the engine, whose own
    bound then stops the engine. Only answers to commands of the gateway are still added, one terminal frame each.
    """

    def __init__(self, link: Link, on_room: Callable[[], None]) -> None:
        """`on_room` is called when the outbox was blocked and is empty again."""
        self._link = link
        self._on_room = on_room
        self._waiting: deque[list[bytes]] = deque()
        self._changed = anyio.Event()
        self.sent = 0
        """Number of messages passed to the link or waiting for it."""

    @property
    def blocked(self) -> bool:
        """Frames wait because the link had no room."""
        return bool(self._waiting)

    def send_nowait(self, events: Sequence[Event]) -> None:
        """Send frames as one message, or as several if they are more than the gateway handles in one turn of its event
        loop. Frames for a lost link are dropped."""
        for start in range(0, len(events), DRAIN_FRAMES):
            frames = [encode(event) for event in events[start : start + DRAIN_FRAMES]]
            self.sent += 1
            if not self._waiting:
                try:
                    self._link.send_nowait(frames)
                    continue
                except LinkClosed:
                    return  # the link calls `on_lost` of the service
                except LinkFull:
                    self._changed.set()
            self._waiting.append(frames)

    async def run(self) -> None:
        """Send waiting frames until the link is lost."""
        while True:
            await self._changed.wait()
            try:
                await self.flush()
            except LinkClosed:
                return
            self._changed = anyio.Event()
            self._on_room()

    async def flush(self) -> None:
        """Wait until all frames are sent. Raises `LinkClosed`."""
        while self._waiting:
            await self._link.send(self._waiting[0])
            self._waiting.popleft()
