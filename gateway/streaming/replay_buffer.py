"""The last events of one stream, as they were sent, for a client that resumes it."""

from collections import deque
from collections.abc import Sequence
from itertools import islice


class EventsGone(Exception):
    """Raised when events that a client needs are no longer kept."""


class EventsUnknown(Exception):
    """Raised for the number of an event that has not been sent."""


class EventLog:
    """Events by their number, from 1. Keeps the newest `bound` bytes of them; the oldest are dropped first."""

    def __init__(self, bound: int, last: int = 0) -> None:
        """`last`: the number of the last event that was sent before the first that is kept."""
        self._bound = bound
        self._events: deque[bytes] = deque()
        self.size = 0
        """Bytes that are kept."""
        self.last = last
        """The number of the newest event."""

    def append(self, events: Sequence[bytes], *, at_least: int = 0) -> None:
        """Add whole events. The newest `at_least` bytes are kept even if they are over the bound."""
        self._events += events
        self.last += len(events)
        self.size += sum(map(len, events))
        while self.size > max(self._bound, at_least):
            self.size -= len(self._events.popleft())

    def after(self, number: int) -> bytes:
        """The events after this one; 0 stands for the beginning. Raises `EventsGone` and `EventsUnknown`."""
        count = self.last - number
        if number < 0 or count < 0:
            raise EventsUnknown
        if count > len(self._events):
            raise EventsGone
        # From the end, where the requested ones mostly are.
        return b"".join(reversed([*islice(reversed(self._events), count)]))
