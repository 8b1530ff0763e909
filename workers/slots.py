"""The slot table: which slot holds which sequence, and up to which cache row. Pure bookkeeping, no device."""

import heapq
from collections.abc import Sequence


class SlotTable:
    """Every slot is free, held by one stream, or soiled: given back, but not yet reset by the runner.

    A free slot with a lower number goes first, so that the highest row in use stays as low as it can.
    """

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"slots must be at least 1, not {slots}")
        self._free = list(range(slots))
        self._streams: list[int | None] = [None] * slots
        self._rows = [0] * slots
        self._soiled: set[int] = set()
        self._kv_tokens = 0

    @property
    def total(self) -> int:
        return len(self._rows)

    @property
    def free(self) -> int:
        """Slots that a sequence can take now."""
        return len(self._free)

    @property
    def active(self) -> int:
        """Slots that a sequence holds."""
        return len(self._rows) - len(self._free) - len(self._soiled)

    @property
    def soiled(self) -> tuple[int, ...]:
        """Slots that wait for the runner's reset, in rising order."""
        return tuple(sorted(self._soiled)) if self._soiled else ()

    @property
    def kv_tokens(self) -> int:
        """Cache rows written for live sequences, all slots together."""
        return self._kv_tokens

    def holder(self, slot: int) -> int | None:
        """The stream that holds `slot`, if any."""
        return self._streams[slot]

    def rows(self, slot: int) -> int:
        """Cache rows of `slot` that are written."""
        return self._rows[slot]

    def take(self, stream: int) -> int | None:
        """Give the lowest free slot to `stream`; None when none is free."""
        if not self._free:
            return None
        slot = heapq.heappop(self._free)
        self._streams[slot] = stream
        return slot

    def wrote(self, slot: int, rows: int) -> None:
        """`rows` more cache rows of a held slot are written."""
        self._rows[slot] += rows
        self._kv_tokens += rows

    def wrote_one(self, slots: Sequence[int]) -> None:
        """One more cache row of each of these held slots is written."""
        for slot in slots:
            self._rows[slot] += 1
        self._kv_tokens += len(slots)

    def release(self, slot: int) -> None:
        """The sequence of `slot` is over; it is free once it is `clean`. Raises `ValueError` if nobody held it."""
        if self._streams[slot] is None:
            raise ValueError(f"slot {slot} is not held")
        self._streams[slot] = None
        self._kv_tokens -= self._rows[slot]
        self._rows[slot] = 0
        self._soiled.add(slot)

    def clean(self, slot: int) -> None:
        """The runner has reset a released slot. Raises `ValueError` if it was not released."""
        if slot not in self._soiled:
            raise ValueError(f"slot {slot} was not released")
        self._soiled.remove(slot)
        heapq.heappush(self._free, slot)
