"""Slot table: which sequence holds which slot, and how many cache rows are written. Pure bookkeeping, no device."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workers.engine.prefix_match import CachedRows


@dataclass(frozen=True, slots=True)
class RetentionChange:
    """The rows that a slot retains from now on."""

    slot: int
    rows: int = 0
    """Rows that are retained; 0 if none are any more."""
    length: int = 0
    """Tokens of the sequence that has left them; more than rows."""
    stream: int = -1
    """That sequence."""


class SlotTable:
    """Tracks slots, each of which is free, held by a stream, retained with the rows of its last stream, or dirty.

    A dirty slot is released but not yet reset by the runner. All slots share a pool of `rows` cache rows. A stream
    reserves rows when it takes a slot, and more as it needs them; retained slots count with the rows that they have.
    Reserved and retained rows never exceed the pool. Free slots with lower numbers are taken first, to keep the highest
    row in use low.
    """

    def __init__(self, slots: int, rows: int) -> None:
        if slots < 1:
            raise ValueError(f"slots must be at least 1, not {slots}")
        if rows < 1:
            raise ValueError(f"rows must be at least 1, not {rows}")
        self._free = list(range(slots))
        self._streams: list[int | None] = [None] * slots
        self._rows = [0] * slots
        self._reserved = [0] * slots
        self._dirty: set[int] = set()
        # Least recently used first.
        self._retained: dict[int, CachedRows] = {}
        self._changed: dict[int, None] = {}
        """Slots whose retained rows have changed since they were taken last."""
        self._kv_tokens = 0
        self._free_rows = rows
        self.capacity = rows
        """Cache rows of all slots together."""

    @property
    def total(self) -> int:
        """Number of slots."""
        return len(self._rows)

    @property
    def free(self) -> int:
        """Number of free slots."""
        return len(self._free)

    @property
    def available(self) -> int:
        """Number of free and retained slots: those that hold no running sequence and need no reset."""
        return len(self._free) + len(self._retained)

    @property
    def active(self) -> int:
        """Number of slots that a stream holds."""
        return len(self._rows) - self.available - len(self._dirty)

    @property
    def dirty(self) -> tuple[int, ...]:
        """Slots that wait for a reset by the runner, in rising order."""
        return tuple(sorted(self._dirty)) if self._dirty else ()

    @property
    def kv_tokens(self) -> int:
        """Cache rows written for running sequences, in all slots together."""
        return self._kv_tokens

    @property
    def retained_tokens(self) -> int:
        """Cache rows of all retained slots."""
        return sum(cached.rows for cached in self._retained.values())

    @property
    def free_rows(self) -> int:
        """Rows of the pool that are neither reserved nor retained."""
        return self._free_rows

    @property
    def reserved_rows(self) -> int:
        """Rows of the pool that are reserved for running sequences."""
        return sum(self._reserved)

    def holder(self, slot: int) -> int | None:
        """Return the stream that holds `slot`, if any."""
        return self._streams[slot]

    def rows(self, slot: int) -> int:
        """Return the number of written cache rows of `slot`."""
        return self._rows[slot]

    def retained(self) -> Iterator[tuple[int, CachedRows]]:
        """Iterate over retained slots and their rows, least recently used first."""
        return iter(self._retained.items())

    def retained_rows(self, slot: int) -> CachedRows | None:
        """Return the rows of a retained slot; None for another slot."""
        return self._retained.get(slot)

    def take_retention_changes(self) -> tuple[RetentionChange, ...]:
        """Return what has changed since the last call, one for each slot at most."""
        if not self._changed:
            return ()
        slots, self._changed = self._changed, {}
        return tuple(map(self._retention, slots))

    def _retention(self, slot: int) -> RetentionChange:
        cached = self._retained.get(slot)
        if cached is None:
            return RetentionChange(slot)
        return RetentionChange(slot, cached.rows, len(cached.tokens), cached.stream)

    @property
    def oldest(self) -> int | None:
        """The least recently used retained slot."""
        return next(iter(self._retained), None)

    def take(self, stream: int, reserve: int) -> int | None:
        """Give the lowest free slot to `stream`, with `reserve` rows; None if there is no free slot or no room."""
        if not self._free or reserve > self._free_rows:
            return None
        slot = heapq.heappop(self._free)
        self._hold(slot, stream, reserve)
        return slot

    def take_over(self, slot: int, stream: int, reserve: int) -> bool:
        """Give a retained slot with its rows to `stream`; False if there is no room.

        Its rows count as written only after `add_rows`. All of them stay reserved until `shrink_reservation`, so that
        they can be retained unchanged until then. Raises `ValueError` for a slot that is not retained.
        """
        if slot not in self._retained:
            raise ValueError(f"slot {slot} is not retained")
        rows = self._rows[slot]
        if reserve > self._free_rows + rows:
            return False
        del self._retained[slot]
        self._changed[slot] = None
        self._free_rows += rows
        self._rows[slot] = 0
        self._hold(slot, stream, max(reserve, rows))
        return True

    def shrink_reservation(self, slot: int, reserve: int) -> None:
        """Reserve only `reserve` rows, after the stream of a slot has dropped the taken-over rows that it cannot
        use."""
        self._free_rows += self._reserved[slot] - reserve
        self._reserved[slot] = reserve

    def grow(self, slot: int, rows: int) -> None:
        """Reserve `rows` more rows of a held slot. Raises `ValueError` if the pool has not so many."""
        if rows > self._free_rows:
            raise ValueError(f"{rows} rows are more than the {self._free_rows} that are free")
        self._reserved[slot] += rows
        self._free_rows -= rows

    def add_rows(self, slot: int, rows: int) -> None:
        """Record `rows` more written cache rows of a held slot."""
        self._rows[slot] += rows
        self._kv_tokens += rows

    def add_row(self, slots: Sequence[int]) -> None:
        """Record one more written cache row of each of these held slots."""
        for slot in slots:
            self._rows[slot] += 1
        self._kv_tokens += len(slots)

    def clear_rows(self, slot: int) -> None:
        """Set the written rows of a held slot to 0. Its stream keeps its reservation."""
        self._kv_tokens -= self._rows[slot]
        self._rows[slot] = 0

    def release(self, slot: int) -> None:
        """Release `slot` of an ended sequence. It is dirty until `clean`.

        Raises `ValueError` for a slot that is not held.
        """
        self._vacate(slot)
        self._rows[slot] = 0
        self._dirty.add(slot)

    def retain(self, slot: int, cached: CachedRows) -> None:
        """Retain `slot` of an ended sequence with its rows. Raises `ValueError` for a slot that is not held."""
        self._vacate(slot)
        self._free_rows -= self._rows[slot]
        self._retained[slot] = cached
        self._changed[slot] = None

    def touch(self, slot: int) -> None:
        """Make a retained slot the most recently used one. No effect on other slots."""
        cached = self._retained.pop(slot, None)
        if cached is not None:
            self._retained[slot] = cached

    def evict(self, slot: int) -> None:
        """Drop the rows of a retained slot; it is dirty until `clean`. Raises `ValueError` for another slot."""
        if slot not in self._retained:
            raise ValueError(f"slot {slot} is not retained")
        del self._retained[slot]
        self._changed[slot] = None
        self._free_rows += self._rows[slot]
        self._rows[slot] = 0
        self._dirty.add(slot)

    def clean(self, slot: int) -> None:
        """Record that the runner has reset a dirty slot, which is free now. Raises `ValueError` for another slot."""
        if slot not in self._dirty:
            raise ValueError(f"slot {slot} is not dirty")
        self._dirty.remove(slot)
        heapq.heappush(self._free, slot)

    def _hold(self, slot: int, stream: int, reserve: int) -> None:
        self._streams[slot] = stream
        self._reserved[slot] = reserve
        self._free_rows -= reserve

    def _vacate(self, slot: int) -> None:
        if self._streams[slot] is None:
            raise ValueError(f"slot {slot} is not held")
        self._streams[slot] = None
        self._kv_tokens -= self._rows[slot]
        self._free_rows += self._reserved[slot]
        self._reserved[slot] = 0
