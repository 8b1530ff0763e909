"""The workers of one model in the order in which they get requests, kept as their load changes."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from enum import IntEnum

from gateway.routing.worker_handle import Role, WorkerHandle

Key = tuple["Rank", tuple[int, int, int], int]
"""The smaller, the better: rank; load, prefixes and last turn; and the order in which workers were added."""


class Rank(IntEnum):
    """The room of a worker."""

    FREE = 0
    """A slot is free."""
    TRIES_SUSPECT = 1
    """A slot is free, but it should start no other sequence beside a suspect."""
    FULL = 2
    """No slot is free. It may get sequences for those that become free next."""
    NO_ROOM = 3


def rank(handle: WorkerHandle) -> Rank:
    """The rank of a worker now. Sequences of other gateways take its slots, but not this gateway's places."""
    if len(handle.live) >= handle.room:
        return Rank.NO_ROOM
    if handle.load >= handle.slots:
        return Rank.FULL
    return Rank.TRIES_SUSPECT if handle.tries_suspect else Rank.FREE


class LoadOrder:
    """Sorts the active workers that take requests. A worker is moved when its load changes, so that a request looks at
    few of them, however many there are.

    What only time changes (a worker that falls silent, a circuit that closes) is checked when a worker is looked at.
    """

    def __init__(self) -> None:
        self.live = 0
        """Sequences on all workers."""
        self._live: dict[WorkerHandle, int] = {}
        """Those of each worker, as counted in `live`."""
        self._numbers: dict[WorkerHandle, int] = {}
        """All workers, whether they take requests or not."""
        self._handles: dict[int, WorkerHandle] = {}
        self._next = 0
        self.standbys: dict[WorkerHandle, None] = {}
        """Those on standby."""
        self._ready: dict[WorkerHandle, None] = {}
        """At least those that are ready, whatever their role."""
        self._keys: list[Key] = []
        self._key_of: dict[WorkerHandle, Key] = {}
        """The key of each worker that takes requests, as far as its notices tell."""

    def __bool__(self) -> bool:
        """True if there are any workers."""
        return bool(self._numbers)

    def __iter__(self) -> Iterator[WorkerHandle]:
        """All workers, in the order in which they were added."""
        return iter(self._numbers)

    def add(self, handle: WorkerHandle) -> None:
        """Add a worker."""
        self._numbers[handle], self._handles[self._next] = self._next, handle
        self._next += 1
        self.update(handle)

    def remove(self, handle: WorkerHandle) -> None:
        """Remove a worker."""
        self._drop(handle)
        self.live -= self._live.pop(handle)
        for known in (self.standbys, self._ready):
            known.pop(handle, None)
        del self._handles[self._numbers.pop(handle)]

    def update(self, handle: WorkerHandle) -> None:
        """Note that the load, the role or the state of a worker has changed."""
        count = len(handle.live)
        self.live += count - self._live.get(handle, 0)
        self._live[handle] = count
        active, ready = handle.role is Role.ACTIVE, handle.ready
        if ready:
            self._ready[handle] = None
        if active:
            self.standbys.pop(handle, None)
        else:
            self.standbys[handle] = None
        key = self._key(handle) if active and ready else None
        if key != self._key_of.get(handle):
            self._drop(handle)
            if key is not None:
                self._key_of[handle] = key
                insort(self._keys, key)

    def has_ready(self) -> bool:
        """A worker is ready, active or on standby."""
        while self._ready:
            handle = next(iter(self._ready))
            if handle.ready:
                return True
            del self._ready[handle]  # a notice lets it return
        return False

    def candidates(self, now: float, *, with_room: bool) -> Iterator[WorkerHandle]:
        """The workers that may get a request now, or only those `with_room` for a sequence: the best first, and those
        that may be lost soon last of all. To be read until a sequence is placed."""
        doubtful = []
        for handle in self._sorted():
            if with_room and self._key_of[handle][0] is Rank.NO_ROOM:
                break
            if not handle.admits(now):
                continue
            if handle.doubtful(now):
                doubtful.append(handle)
            else:
                yield handle
        yield from doubtful

    def _sorted(self) -> Iterator[WorkerHandle]:
        place = 0
        while place < len(self._keys):
            key = self._keys[place]
            handle = self._handles[key[2]]
            if handle.ready:
                yield handle
            else:  # a notice lets it return
                self._drop(handle)
            # The order may have changed since.
            place = bisect_right(self._keys, key)

    def _key(self, handle: WorkerHandle) -> Key:
        return rank(handle), (handle.load, *handle.prefixes), self._numbers[handle]

    def _drop(self, handle: WorkerHandle) -> None:
        key = self._key_of.pop(handle, None)
        if key is not None:
            del self._keys[bisect_left(self._keys, key)]
