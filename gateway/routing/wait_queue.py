"""The sequences that have no worker at the moment, in the order of their admission."""

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from operator import attrgetter

from gateway.routing.sequence import Stream

MIN_STAY_S = 1.0
"""A second and later stay is at least this long, however short the first one may be."""
_order = attrgetter("order")


class WaitingRoom:
    """Who was admitted first is served first, whether it lost its worker or has had none yet.

    `bound` is for newcomers alone: what lost its worker was admitted already, and its number is bounded by what the
    workers hold. After `wait_s` seconds `overdue(stream)` is called; the sequence stays until it is removed.
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
        """So many newcomers can wait."""
        return len(self) + count <= self._bound

    def of(self, model: str) -> tuple[Stream, ...]:
        """The sequences that wait for a worker of this model, the one admitted first in front."""
        return tuple(self._queues.get(model, ()))

    def add(self, stream: Stream) -> None:
        """Let it wait."""
        insort(self._queues.setdefault(stream.call.model, []), stream, key=_order)
        stream.waited = True
        stream.call.suspended(1)
        self._arm(stream, self._wait_s)

    def stay(self, stream: Stream) -> None:
        """Let it wait on, after it was overdue."""
        self._arm(stream, max(self._wait_s, MIN_STAY_S))

    def _arm(self, stream: Stream, wait_s: float) -> None:
        self._timers[stream] = asyncio.get_running_loop().call_later(wait_s, self._overdue, stream)

    def remove(self, stream: Stream) -> None:
        """It waits no longer."""
        self._timers.pop(stream).cancel()
        model = stream.call.model
        queue = self._queues[model]
        del queue[bisect_left(queue, stream.order, key=_order)]
        if not queue:
            del self._queues[model]
        stream.call.suspended(-1)
