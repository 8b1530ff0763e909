"""What waits to be sent: usually nothing. The engine is held up when the gateway does not read."""

from collections import deque
from collections.abc import Callable, Sequence

import anyio

from actors.transport.link import Link, LinkClosed, LinkFull
from protocol.bounds import MAX_FRAMES_PER_MESSAGE
from protocol.codec import encode
from protocol.events import Event


class Outbox:
    """Sends at once while the link has room, and keeps the order when it has none.

    It has no bound of its own: while it is `blocked` its owner takes nothing from the engine, whose own bound then
    holds the engine. What still comes in are answers to commands of the gateway, one terminal frame each.
    """

    def __init__(self, link: Link, on_room: Callable[[], None]) -> None:
        """`on_room` is called when the outbox was blocked and is not any more."""
        self._link = link
        self._on_room = on_room
        self._waiting: deque[list[bytes]] = deque()
        self._changed = anyio.Event()
        self.sent = 0
        """Messages given to the link."""

    @property
    def blocked(self) -> bool:
        return bool(self._waiting)

    def send_nowait(self, events: Sequence[Event]) -> None:
        """Send frames as one message (or several, where one does not hold them). A link that is lost takes nothing."""
        for start in range(0, len(events), MAX_FRAMES_PER_MESSAGE):
            frames = [encode(event) for event in events[start : start + MAX_FRAMES_PER_MESSAGE]]
            self.sent += 1
            if not self._waiting:
                try:
                    self._link.send_nowait(frames)
                    continue
                except LinkClosed:
                    return  # `on_lost` tells the service
                except LinkFull:
                    self._changed.set()
            self._waiting.append(frames)

    async def run(self) -> None:
        """Send what waits, for ever. Ends when the link is lost."""
        while True:
            await self._changed.wait()
            try:
                await self.flush()
            except LinkClosed:
                return
            self._changed = anyio.Event()
            self._on_room()

    async def flush(self) -> None:
        """Wait until nothing waits. Raises `LinkClosed`."""
        while self._waiting:
            await self._link.send(self._waiting[0])
            self._waiting.popleft()
