"""The workers of one model in the order in which they get requests, kept as their load changes."""

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from enum import IntEnum
from itertools import islice
from random import Random

from gateway.routing.worker_handle import Role, WorkerHandle
from protocol.events import Phases

Key = tuple["Rank", tuple[bool, int, int, int], int]
"""The smaller, the better: rank; whether it is a prefill worker, load, prefixes and last turn; and the order in which
workers were added."""


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

    What other gateways have on a worker is known later. They would all choose the one that had least a while ago. So of
    workers that other gateways share, two random ones of the best rank come first, the less loaded one of them in front
    (Mitzenmacher, "How useful is old information?", 2000).
    """

    def __init__(self, chance: Random | None = None) -> None:
        """`chance` chooses among workers that other gateways share."""
        self._chance = chance or Random()
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
        self._contexts: dict[WorkerHandle, int] = {}
        """Those that workers have reported."""
        self._rooms: dict[WorkerHandle, int] = {}
        """The room of each worker whose slots are known."""
        self._context: int | None = None
        self._room: int | None = None
        self.checked_at = -math.inf
        """The time at which the roles were checked; before all times after a change of what is ready."""
        self._keys: list[Key] = []
        self._key_of: dict[WorkerHandle, Key] = {}
        """The key of each worker that takes requests, as far as its notices tell."""
        self.of_one_phase: dict[WorkerHandle, None] = {}
        """Those of them that are there for the prompts or for the tokens alone."""

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
        self._note_size(handle, None, 0)
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
        hello = handle.status.hello
        self._note_size(handle, None if hello is None else hello.context, handle.room if handle.slots else 0)
        key = self._key(handle) if active and ready else None
        if (key is None) != (handle not in self._key_of) or (ready and not active):
            self.checked_at = -math.inf
        if key != self._key_of.get(handle):
            self._drop(handle)
            if key is not None:
                self._key_of[handle] = key
                insort(self._keys, key)
        if key is None or handle.phases == "both":
            self.of_one_phase.pop(handle, None)
        else:
            self.of_one_phase[handle] = None

    @property
    def context(self) -> int | None:
        """The context of the worker with the most; None while unknown."""
        if self._context is None:
            self._context = max(self._contexts.values(), default=None)
        return self._context

    @property
    def room(self) -> int | None:
        """The sequences that the worker with the most room may have; None while unknown."""
        if self._room is None:
            self._room = max(self._rooms.values(), default=None)
        return self._room

    def _note_size(self, handle: WorkerHandle, context: int | None, room: int) -> None:
        if context != self._contexts.get(handle):
            self._context = None
            if context is None:
                del self._contexts[handle]
            else:
                self._contexts[handle] = context
        if room != self._rooms.get(handle, 0):
            self._room = None
            if room:
                self._rooms[handle] = room
            else:
                del self._rooms[handle]

    def has_ready(self) -> bool:
        """A worker is ready, active or on standby."""
        while self._ready:
            handle = next(iter(self._ready))
            if handle.ready:
                return True
            del self._ready[handle]  # a notice lets it return
        return False

    def by_load(self) -> Iterator[WorkerHandle]:
        """The workers that are ready: active ones, the least loaded first, then standbys."""
        yield from self._sorted()
        yield from [handle for handle in self.standbys if handle.ready]

    def candidates(self, now: float, *, worst: Rank = Rank.NO_ROOM) -> Iterator[WorkerHandle]:
        """The workers that may get a request now, up to the `worst` rank: the best first, and those that may be lost
        soon last of all. To be read until a sequence is placed."""
        doubtful = []
        for handle in self._sorted():
            if self._key_of[handle][0] > worst:
                break
            if not handle.admits(now):
                continue
            if handle.doubtful(now):
                doubtful.append(handle)
            else:
                yield handle
        yield from doubtful

    def free(self, phases: Phases) -> Iterator[WorkerHandle]:
        """The workers of this role with a free slot, the least loaded first. To be read until a sequence is placed."""
        prefills = phases == "prefill"
        for key in islice(self._keys, bisect_left(self._keys, (Rank.FREE, (prefills,))), None):
            if key[0] is not Rank.FREE or key[1][0] != prefills:
                break
            if (handle := self._handles[key[2]]).phases == phases:
                yield handle

    def _sorted(self) -> Iterator[WorkerHandle]:
        first = self._two()
        for handle in first:
            if handle.ready:
                yield handle
        place = 0
        while place < len(self._keys):
            key = self._keys[place]
            handle = self._handles[key[2]]
            if not handle.ready:  # a notice lets it return
                self._drop(handle)
            elif handle not in first:
                yield handle
            # The order may have changed since.
            place = bisect_right(self._keys, key)

    def _two(self) -> list[WorkerHandle]:
        """Two random workers of the best rank, if other gateways share them."""
        if not self._keys or not self._handles[self._keys[0][2]].shared:
            return []
        rank, (prefills, *_), _ = self._keys[0]
        best = bisect_left(self._keys, (rank, (prefills + 1,)))
        places = sorted(self._chance.sample(range(best), min(2, best)))
        return [self._handles[self._keys[place][2]] for place in places]

    def _key(self, handle: WorkerHandle) -> Key:
        return rank(handle), (handle.prefills, handle.load, *handle.prefixes), self._numbers[handle]

    def _drop(self, handle: WorkerHandle) -> None:
        key = self._key_of.pop(handle, None)
        self.of_one_phase.pop(handle, None)
        if key is not None:
            del self._keys[bisect_left(self._keys, key)]
