"""An end of a link for tests, which keeps what it heard."""

from collections.abc import Callable

import anyio

from actors.link import Link


class End:
    """One end with what it heard."""

    def __init__(self) -> None:
        self.messages: list[list[bytes]] = []
        self.lost: list[str] = []
        self._changed = anyio.Event()
        self.link: Link

    def heard(self, frames: list[bytes]) -> None:
        self.messages.append(frames)
        self._changed.set()

    def gone(self, reason: str) -> None:
        self.lost.append(reason)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(20):
            while not condition():
                self._changed = anyio.Event()
                await self._changed.wait()
