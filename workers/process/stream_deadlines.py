"""Deadlines of the open sequences of a worker."""

import heapq
from collections.abc import Container

_SPARE = 64


class StreamDeadlines:
    """A heap of deadlines. Those of ended sequences are dropped when they come up, or when they are too many."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, deadline: float, stream: int) -> None:
        """Note the deadline of a sequence."""
        heapq.heappush(self._heap, (deadline, stream))

    def pop_due(self, now: float) -> list[int]:
        """Remove and return the sequences whose deadline has passed, ended ones included."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[1])
        return due

    def next(self, live: Container[int], count: int) -> float | None:
        """Return the next deadline of a sequence that is one of the `count` live ones."""
        if len(self._heap) > 2 * count + _SPARE:  # deadlines of ended sequences must not accumulate
            self._heap = [entry for entry in self._heap if entry[1] in live]
            heapq.heapify(self._heap)
        while self._heap and self._heap[0][1] not in live:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def clear(self) -> None:
        """Forget all."""
        self._heap.clear()
