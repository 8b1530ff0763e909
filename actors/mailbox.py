"""Bounded mailboxes, and the dispatcher that empties them in the turn of the event loop in which they are filled."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

M = TypeVar("M")

CAPACITY = 256
"""Messages that wait in one mailbox."""
RESERVE = 64
"""As many more, which only urgent ones may fill."""
TURN = 256
"""Messages that are handled before other callbacks of the event loop run."""


class MailboxFull(Exception):
    """Raised by a post when the bound is reached. The message was not taken."""


class Dispatcher:
    """Runs handlers one after the other, never one inside another.

    A message that is posted from outside a handler is handled before the post returns; one that a handler posts is
    handled after that handler has returned. Mailboxes take turns, one message each, in the order in which they got
    their first one. After `TURN` messages the rest waits for the next turn of the event loop.
    """

    def __init__(self) -> None:
        """Must be made on the event loop on which it is used."""
        self._loop = asyncio.get_running_loop()
        self._ready: deque[Mailbox[Any]] = deque()
        self._running = False
        self._resumes: asyncio.Handle | None = None

    def schedule(self, mailbox: "Mailbox[Any]") -> None:
        """Called by a mailbox when it gets its first message."""
        self._ready.append(mailbox)
        if not self._running:
            self._run()

    def _run(self) -> None:
        ready = self._ready
        self._running = True
        try:
            for _ in range(TURN):
                if not ready:
                    return
                mailbox = ready.popleft()
                if mailbox.deliver():
                    ready.append(mailbox)
        finally:
            self._running = False
            if ready and self._resumes is None:
                self._resumes = self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._resumes = None
        self._run()


class Mailbox(Generic[M]):
    """First in, first out. An urgent message (a stop, a loss) does not overtake others: it is refused later, not
    delivered earlier."""

    def __init__(self, dispatcher: Dispatcher, handle: Callable[[M], None]) -> None:
        """`handle` must not raise. Nothing is delivered before `open`."""
        self._dispatcher = dispatcher
        self._handle = handle
        self._messages: deque[M] = deque()
        self._idle = False
        """Open, empty, and no message is being handled: the next one must schedule it."""

    def post(self, message: M, urgent: bool = False) -> None:
        """Append a message. Raises `MailboxFull`; then it was not taken."""
        waiting = len(self._messages)
        if waiting >= CAPACITY and not (urgent and waiting < CAPACITY + RESERVE):
            raise MailboxFull(f"{waiting} messages wait already")
        self.post_reserved(message)

    def post_reserved(self, message: M) -> None:
        """Append a message that always has room, such as the one notice of the end that a watcher gets."""
        self._messages.append(message)
        if self._idle:
            self._idle = False
            self._dispatcher.schedule(self)

    def open(self) -> None:
        """Begin to deliver, with what waits already."""
        self._dispatcher.schedule(self)

    def clear(self) -> None:
        """Drop what waits."""
        self._messages.clear()

    def deliver(self) -> bool:
        """Called by the dispatcher: handle the oldest message. True when others wait."""
        if self._messages:
            self._handle(self._messages.popleft())
        self._idle = not self._messages
        return not self._idle
