"""A bounded queue of messages with one reader. Posting is synchronous; only the reader awaits."""

from collections import deque
from typing import Generic, TypeVar

import anyio

M = TypeVar("M")


class MailboxFull(Exception):
    """Raised by a post when the bound is reached. The message was not taken."""


class MailboxClosed(Exception):
    """Raised by a post after `close`, and by `receive` when a closed mailbox is empty."""


class Mailbox(Generic[M]):
    """First in, first out, at most `capacity` messages, and `reserve` more that only urgent ones may fill.

    An urgent message (a cancel, a stop) does not overtake: it is refused later, not delivered earlier, so a cancel
    never arrives before what it cancels. Used on one event loop.
    """

    def __init__(self, capacity: int = 256, reserve: int = 64) -> None:
        """Raises `ValueError` when `capacity` is below 1 or `reserve` below 0."""
        if capacity < 1:
            raise ValueError(f"capacity: {capacity} is below 1")
        if reserve < 0:
            raise ValueError(f"reserve: {reserve} is below 0")
        self._capacity = capacity
        self._limit = capacity + reserve
        self._messages: deque[M] = deque()
        self._closed = False
        self._wake: anyio.Event | None = None  # set by the reader while it waits, and only then

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def closed(self) -> bool:
        return self._closed

    def post_nowait(self, message: M, *, urgent: bool = False) -> None:
        """Append a message. Raises `MailboxFull` or `MailboxClosed`; then it was not taken."""
        if self._closed:
            raise MailboxClosed("the mailbox is closed")
        if len(self._messages) >= (self._limit if urgent else self._capacity):
            raise MailboxFull(f"{len(self._messages)} messages wait already")
        self._messages.append(message)
        self._notify()

    def post_promised(self, message: M) -> None:
        """Append a message whose room was promised before, such as the one notice that a watch may bring: the bound
        does not apply, since the promises are bounded. Does nothing when the mailbox is closed."""
        if not self._closed:
            self._messages.append(message)
            self._notify()

    def receive_nowait(self) -> M:
        """The oldest message. Raises `LookupError` when there is none now, `MailboxClosed` when there will be none."""
        if self._messages:
            return self._messages.popleft()
        if self._closed:
            raise MailboxClosed("the mailbox is closed and empty")
        raise LookupError("the mailbox is empty")

    async def receive(self) -> M:
        """The oldest message, waiting for one. A cancelled receive takes nothing. Raises `MailboxClosed`."""
        while not self._messages:
            if self._closed:
                raise MailboxClosed("the mailbox is closed and empty")
            self._wake = anyio.Event()
            try:
                await self._wake.wait()
            finally:
                self._wake = None
        return self._messages.popleft()

    def close(self) -> None:
        """Take no more messages. Those that wait can still be received. May be called again."""
        self._closed = True
        self._notify()

    def clear(self) -> list[M]:
        """Remove and return what waits, oldest first."""
        messages = list(self._messages)
        self._messages.clear()
        return messages

    def _notify(self) -> None:
        if self._wake is not None:
            self._wake.set()
