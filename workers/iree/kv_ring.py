"""Rings of rows in host memory, of the layers that keep the last rows of a slot alone."""

from typing import Any

from numpy.typing import NDArray

from workers.engine.states.ring_pieces import ring_pieces
from workers.iree.kv import HostKv


class HostRing:
    """The last rows of every slot: row r is at r % `rows`."""

    def __init__(self, ring: HostKv, rows: int) -> None:
        self._ring = ring
        self._rows = rows

    def size_of(self, rows: int) -> int:
        """See `HostKv.size_of`."""
        return self._ring.size_of(rows)

    def read_into(self, part: NDArray[Any], slot: int, start: int, end: int) -> None:
        """Like `HostKv.read_into`, of rows that are in the ring: those before its end, and then those at its start."""
        at = 0
        for low, high in ring_pieces(start, end, self._rows):
            size = self._ring.size_of(high - low)
            self._ring.read_into(part[at : at + size], slot, low, high)
            at += size

    def write(self, slot: int, start: int, end: int, part: NDArray[Any]) -> None:
        """Write what `read_into` has read of these rows."""
        at = 0
        for low, high in ring_pieces(start, end, self._rows):
            size = self._ring.size_of(high - low)
            self._ring.write(slot, low, high, part[at : at + size])
            at += size

    def forget(self, slot: int, rows: int) -> None:
        """See `HostKv.forget`."""
        self._ring.forget(slot, min(rows, self._rows))

    def copy_prefix(self, source: int, target: int, length: int, written: int, held: int) -> None:
        """Make the rows before `length` of `source`, which has `written` rows, those of `target`, which has `held`.

        The places of later rows become zero. So may those of the oldest rows that are left, a tile at most.
        """
        if source != target or length == 0:
            self.forget(target, held)
        if length == 0:
            return
        if source != target:
            self._ring.copy(source, target, min(written, self._rows))
        for low, high in ring_pieces(max(length, written - self._rows), written, self._rows):
            self._ring.clear(target, low, high)
