"""Bounded mailboxes, and the dispatcher that runs their handlers in the same turn of the event loop."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from protocol.bounds import MAX_FRAMES_PER_MESSAGE

M = TypeVar("M")

CAPACITY = 2 * MAX_FRAMES_PER_MESSAGE
"""Messages that wait in one mailbox. A handler may post a notice for each frame of a link's message."""
RESERVE = 64
"""Room beyond that for urgent messages."""
TURN = CAPACITY + RESERVE
"""Messages that are handled before other callbacks of the event loop run. It is more than one message of a link leads
to: itself, and for each of its frames one notice to each of the worker's two watchers, the router and the fleet. So the
next one finds empty mailboxes; a watcher's mailbox fills up only if the watcher or others post without end."""


class MailboxFull(Exception):
    """Raised by a post when the bound is reached. The message is not taken."""


class Dispatcher:
    """Runs the handlers of the mailboxes, one at a time.

    A message that is posted while no handler runs is handled before the post returns, if its mailbox is open and no
    others wait. A message that a handler posts is handled after that handler. Mailboxes take turns, one message each.
    After `TURN` messages the rest wait for the next turn of the event loop.
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
                mailbox, more = ready.popleft(), True  # stays so if the handler raises, such as `KeyboardInterrupt`
                try:
                    more = mailbox.deliver()
                finally:
                    if more:
                        ready.append(mailbox)
        finally:
            self._running = False
            if ready and self._resumes is None:
                self._resumes = self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._resumes = None
        self._run()


class Mailbox(Generic[M]):
    """A first-in, first-out queue. Urgent messages (a stop, a loss) have a reserve; they do not overtake others."""

    def __init__(self, dispatcher: Dispatcher, handle: Callable[[M], None]) -> None:
        """`handle` raises no `Exception`. Nothing is delivered before `open`."""
        self._dispatcher = dispatcher
        self._handle = handle
        self._messages: deque[M] = deque()
        self._idle = False
        """Open, empty, and no message is being handled: the next one must schedule it."""

    def post(self, message: M, urgent: bool = False) -> None:
        """Append a message. Raises `MailboxFull`."""
        waiting = len(self._messages)
        if waiting >= CAPACITY and not (urgent and waiting < CAPACITY + RESERVE):
            raise MailboxFull(f"{waiting} messages wait already")
        self.post_reserved(message)

    def post_reserved(self, message: M) -> None:
        """Append a message beyond the bound. For a watcher's one `Terminated`."""
        self._messages.append(message)
        if self._idle:
            self._idle = False
            self._dispatcher.schedule(self)

    def open(self) -> None:
        """Begin to deliver."""
        self._dispatcher.schedule(self)

    def clear(self) -> list[M]:
        """Drop the waiting messages, and return them."""
        dropped, self._messages = list(self._messages), deque()
        return dropped

    def deliver(self) -> bool:
        """Handle the oldest message. True when others wait."""
        if self._messages:
            self._handle(self._messages.popleft())
        self._idle = not self._messages
        return not self._idle
