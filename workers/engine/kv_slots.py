"""The slot table: which slot holds which sequence, and up to which cache row. Pure bookkeeping, no device."""

import heapq
from collections.abc import Iterator, Sequence

from workers.engine.prefix_match import CachedRows


class SlotTable:
    """Every slot is free, held by one stream, retained for what its last stream left in it, or soiled: given back,
    but not yet reset by the runner.

    The slots are a pool of `rows` cache rows: a stream reserves what it may come to need when it takes a slot, and
    what is retained counts as it is. Live and retained rows together never exceed the pool. A free slot with a lower
    number goes first, so that the highest row in use stays as low as it can.
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
        # Oldest first.
        self._retained: dict[int, CachedRows] = {}
        self._kv_tokens = 0
        self._free_rows = rows

    @property
    def total(self) -> int:
        return len(self._rows)

    @property
    def free(self) -> int:
        """Slots that a sequence can take now."""
        return len(self._free)

    @property
    def available(self) -> int:
        """Slots that hold no live sequence and wait for no reset: the free and the retained ones."""
        return len(self._free) + len(self._retained)

    @property
    def active(self) -> int:
        """Slots that a sequence holds."""
        return len(self._rows) - self.available - len(self._dirty)

    @property
    def dirty(self) -> tuple[int, ...]:
        """Slots that wait for the runner's reset, in rising order."""
        return tuple(sorted(self._dirty)) if self._dirty else ()

    @property
    def kv_tokens(self) -> int:
        """Cache rows written for live sequences, all slots together."""
        return self._kv_tokens

    @property
    def retained_tokens(self) -> int:
        """Cache rows of retained slots."""
        return sum(written.rows for written in self._retained.values())

    @property
    def free_rows(self) -> int:
        """Rows of the pool that are neither reserved nor retained."""
        return self._free_rows

    def holder(self, slot: int) -> int | None:
        """The stream that holds `slot`, if any."""
        return self._streams[slot]

    def rows(self, slot: int) -> int:
        """Cache rows of `slot` that are written."""
        return self._rows[slot]

    def retained(self) -> Iterator[tuple[int, CachedRows]]:
        """The retained slots and what they hold, the one that was left first before the others."""
        return iter(self._retained.items())

    @property
    def oldest(self) -> int | None:
        """The retained slot that was left first."""
        return next(iter(self._retained), None)

    def take(self, stream: int, reserve: int) -> int | None:
        """Give the lowest free slot to `stream`, with `reserve` rows; None when there is no slot or no room."""
        if not self._free or reserve > self._free_rows:
            return None
        slot = heapq.heappop(self._free)
        self._hold(slot, stream, reserve)
        return slot

    def take_over(self, slot: int, stream: int, reserve: int) -> bool:
        """Give a retained slot to `stream` as it is; False when there is no room. Its rows count as none until they
        are said to be `add_rows`, and all of them stay reserved until it has `shrink_reservation`: until then they may
        be retained again as they were. Raises `ValueError` for a slot that is not retained."""
        if slot not in self._retained:
            raise ValueError(f"slot {slot} is not retained")
        rows = self._rows[slot]
        if reserve > self._free_rows + rows:
            return False
        del self._retained[slot]
        self._free_rows += rows
        self._rows[slot] = 0
        self._hold(slot, stream, max(reserve, rows))
        return True

    def shrink_reservation(self, slot: int, reserve: int) -> None:
        """The stream of a slot has forgotten what it found there and cannot use: `reserve` rows are all it needs."""
        self._free_rows += self._reserved[slot] - reserve
        self._reserved[slot] = reserve

    def add_rows(self, slot: int, rows: int) -> None:
        """`rows` more cache rows of a held slot are written."""
        self._rows[slot] += rows
        self._kv_tokens += rows

    def add_row(self, slots: Sequence[int]) -> None:
        """One more cache row of each of these held slots is written."""
        for slot in slots:
            self._rows[slot] += 1
        self._kv_tokens += len(slots)

    def clear_rows(self, slot: int) -> None:
        """The rows of a held slot are forgotten; what its stream reserved it keeps."""
        self._kv_tokens -= self._rows[slot]
        self._rows[slot] = 0

    def release(self, slot: int) -> None:
        """The sequence of `slot` is over; it is free once it is `clean`. Raises `ValueError` if nobody held it."""
        self._vacate(slot)
        self._rows[slot] = 0
        self._dirty.add(slot)

    def retain(self, slot: int, written: CachedRows) -> None:
        """The sequence of `slot` is over; what it wrote stays. Raises `ValueError` if nobody held it."""
        self._vacate(slot)
        self._free_rows -= self._rows[slot]
        self._retained[slot] = written

    def touch(self, slot: int) -> None:
        """What a retained slot holds was of use: it is the youngest from now on. Nothing for any other slot."""
        written = self._retained.pop(slot, None)
        if written is not None:
            self._retained[slot] = written

    def evict(self, slot: int) -> None:
        """Forget what a retained slot holds; it is free once it is `clean`. Raises `ValueError` for another slot."""
        if slot not in self._retained:
            raise ValueError(f"slot {slot} is not retained")
        del self._retained[slot]
        self._free_rows += self._rows[slot]
        self._rows[slot] = 0
        self._dirty.add(slot)

    def clean(self, slot: int) -> None:
        """The runner has reset a released slot. Raises `ValueError` if it was not released."""
        if slot not in self._dirty:
            raise ValueError(f"slot {slot} was not released")
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
