"""Snapshots of recurrent states in host memory, within a bound of bytes. Pure.

A snapshot is the state after a prefix of some tenant's tokens, found by its digest: no tenant finds another's. Which
one is evicted follows GreedyDual-Size (Cao and Irani, "Cost-Aware WWW Proxy Caching Algorithms", 1997): each has a
priority, which is its worth by its size, the tokens that are computed again without it, above the priority of the one
that was evicted last. A hit renews it.
"""

import heapq
from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass, field

from workers.engine.states.sequence_digests import SequenceDigests

OVERHEAD_BYTES = 1024
"""Counted for each snapshot beside its state: its digest, and its places in the store and in the digests of others."""
MAX_SNAPSHOTS = 1024
"""Most snapshots, however small: each change lets the prompts that wait look up all those of their tenant again."""


@dataclass(slots=True, eq=False)
class Snapshot:
    """The recurrent state after the first `length` tokens of sequences with a common prefix."""

    digest: bytes
    tenant: str
    length: int
    state: bytes = field(repr=False)
    """Empty once it is not held any more: a sequence may still know the snapshot."""
    size: int
    """Bytes that it counts."""
    worth: int
    """Tokens that are computed again without it."""
    entry: int = 0
    """The number of its entry in the queue, which has its priority."""
    proven: bool = False
    """A token was sampled by a state that follows from it: its logits would not be finite if this state was not."""


class SnapshotStore:
    """Owns the snapshots and what each is worth. Never holds more than `max_bytes`."""

    def __init__(self, max_bytes: int, *, most: int = MAX_SNAPSHOTS) -> None:
        """`most` is the number of snapshots. Raises `ValueError` for an invalid bound."""
        if max_bytes < 0:
            raise ValueError(f"max_bytes must not be negative, not {max_bytes}")
        if most < 1:
            raise ValueError(f"most must be at least 1, not {most}")
        self.max_bytes = max_bytes
        self._most = most
        self._held: dict[bytes, Snapshot] = {}
        self._lengths: dict[str, list[int]] = {}
        """The lengths of the snapshots of each tenant in order, one for each snapshot."""
        self._queue: list[tuple[float, int, Snapshot]] = []
        """Entries of snapshots by priority, then by their numbers; also old ones, of snapshots that were renewed."""
        self._version = 0
        """Changes with what is held."""
        self._entries = 0
        self._floor = 0.0
        """The priority of the snapshot that was evicted last."""
        self.used_bytes = 0
        self.hits = 0
        """Sequences that started with a snapshot."""
        self.evictions = 0
        """Snapshots that were dropped for others."""

    def __len__(self) -> int:
        return len(self._held)

    def nearest(self, tenant: str, digests: SequenceDigests, most: int) -> Snapshot | None:
        """Return the snapshot of the longest prefix of a sequence with at most `most` tokens."""
        if tenant not in self._lengths:
            return None
        matching = digests.matching(self._version, lambda: self._matching(tenant, digests))
        count = bisect_right(matching, most)
        digest = digests.of(matching[count - 1]) if count else None
        return None if digest is None else self._held[digest]

    def within(self, tenant: str, digests: SequenceDigests, most: int) -> list[Snapshot]:
        """Return the snapshots of all prefixes of a sequence with at most `most` tokens, shortest first."""
        if tenant not in self._lengths:
            return []
        matching = digests.matching(self._version, lambda: self._matching(tenant, digests))
        named = [digests.of(length) for length in matching[: bisect_right(matching, most)]]
        return [self._held[digest] for digest in named if digest is not None]

    def _matching(self, tenant: str, digests: SequenceDigests) -> list[int]:
        """Return the lengths of the snapshots of a sequence's prefixes, in order."""
        lengths = self._lengths[tenant]
        lengths = sorted(set(lengths[: bisect_right(lengths, digests.most)]))
        digests.compute(lengths)
        return [length for length in lengths if digests.of(length) in self._held]

    def holds(self, digest: bytes) -> bool:
        """Return whether there is a snapshot with this digest."""
        return digest in self._held

    def fits(self, size: int) -> bool:
        """Return whether a state of so many bytes can be held at all."""
        return size + OVERHEAD_BYTES <= self.max_bytes

    def add(self, tenant: str, digests: SequenceDigests, length: int, state: bytes) -> Snapshot | None:
        """Hold a state, for which those that are worth least are evicted. Returns None for one that does not fit, or
        that is held already."""
        digest = digests.of(length)
        if digest is None or digest in self._held or not self.fits(len(state)):
            return None
        below = self.nearest(tenant, digests, length - 1)
        worth = length - (0 if below is None else below.length)
        snapshot = Snapshot(digest, tenant, length, state, len(state) + OVERHEAD_BYTES, worth)
        while self.used_bytes + snapshot.size > self.max_bytes or len(self._held) >= self._most:
            self._evict()
        self._held[digest] = snapshot
        self._version += 1
        insort(self._lengths.setdefault(tenant, []), length)
        self.used_bytes += snapshot.size
        self._renew(snapshot)
        return snapshot

    def hit(self, snapshot: Snapshot) -> None:
        """Count a sequence that starts with a snapshot, which may have been evicted since it was found."""
        self.hits += 1
        if self._held.get(snapshot.digest) is snapshot:
            self._renew(snapshot)

    def discard(self, snapshot: Snapshot) -> None:
        """Drop a snapshot, if it is still held."""
        if self._held.get(snapshot.digest) is snapshot:
            self._remove(snapshot)

    def discard_where(self, suspect: Callable[[Snapshot], bool]) -> None:
        """Drop all that are suspect."""
        for snapshot in [each for each in self._held.values() if suspect(each)]:
            self._remove(snapshot)

    def _renew(self, snapshot: Snapshot) -> None:
        priority = self._floor + snapshot.worth / snapshot.size
        self._entries += 1
        snapshot.entry = self._entries
        heapq.heappush(self._queue, (priority, self._entries, snapshot))
        if len(self._queue) > 2 * len(self._held) + MAX_SNAPSHOTS:
            self._queue = [entry for entry in self._queue if self._is_current(entry)]
            heapq.heapify(self._queue)

    def _is_current(self, entry: tuple[float, int, Snapshot]) -> bool:
        _, number, snapshot = entry
        return self._held.get(snapshot.digest) is snapshot and snapshot.entry == number

    def _evict(self) -> None:
        while not self._is_current(self._queue[0]):
            heapq.heappop(self._queue)
        priority, _, snapshot = heapq.heappop(self._queue)
        self._floor = priority
        self._remove(snapshot)
        self.evictions += 1

    def _remove(self, snapshot: Snapshot) -> None:
        del self._held[snapshot.digest]
        self._version += 1
        lengths = self._lengths[snapshot.tenant]
        del lengths[bisect_right(lengths, snapshot.length) - 1]
        if not lengths:
            del self._lengths[snapshot.tenant]
        self.used_bytes -= snapshot.size
        snapshot.state = b""
