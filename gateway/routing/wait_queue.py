"""The queue of the sequences that have no worker, in the order of admission."""

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from operator import attrgetter

from gateway.routing.sequence import Stream

MIN_STAY_S = 1.0
"""The minimum time of a second and later stay."""
_order = attrgetter("order")


class WaitingRoom:
    """First in, first out by admission, for sequences that lost their worker and for new ones.

    `bound` is for new sequences only: those that lost their worker were admitted already, and their number is bounded
    by what workers hold. After `wait_s` seconds `overdue(stream)` is called; the sequence stays until it is removed.
    """

    def __init__(self, bound: int, wait_s: float, overdue: Callable[[Stream], None]) -> None:
        self._bound = bound
        self._wait_s = wait_s
        self._overdue = overdue
        self._queues: dict[str, list[Stream]] = {}
        self._timers: dict[Stream, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def __iter__(self) -> Iterator[Stream]:
        return iter(tuple(self._timers))

    def __contains__(self, stream: Stream) -> bool:
        return stream in self._timers

    def has_room(self, count: int) -> bool:
        """So many new sequences can be added."""
        return len(self) + count <= self._bound

    def of(self, model: str) -> tuple[Stream, ...]:
        """The sequences that wait for a worker of this model, the one admitted first in front."""
        return tuple(self._queues.get(model, ()))

    def add(self, stream: Stream) -> None:
        """Add a sequence."""
        insort(self._queues.setdefault(stream.call.model, []), stream, key=_order)
        stream.waited = True
        stream.call.suspended(1)
        self._arm(stream, self._wait_s)

    def stay(self, stream: Stream) -> None:
        """Keep a sequence that was overdue."""
        self._arm(stream, max(self._wait_s, MIN_STAY_S))

    def _arm(self, stream: Stream, wait_s: float) -> None:
        self._timers[stream] = asyncio.get_running_loop().call_later(wait_s, self._overdue, stream)

    def remove(self, stream: Stream) -> None:
        """Remove a sequence."""
        self._timers.pop(stream).cancel()
        model = stream.call.model
        queue = self._queues[model]
        del queue[bisect_left(queue, stream.order, key=_order)]
        if not queue:
            del self._queues[model]
        stream.call.suspended(-1)
