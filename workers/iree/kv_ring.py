"""Rings of rows in host memory, of the layers that keep the last rows of a slot alone."""

from workers.iree.kv import HostKv


class HostRing:
    """The last rows of every slot: row r is at r % `rows`."""

    def __init__(self, ring: HostKv, rows: int) -> None:
        self._ring = ring
        self._rows = rows

    def forget(self, slot: int, rows: int) -> None:
        """See `HostKv.forget`."""
        self._ring.forget(slot, min(rows, self._rows))

    def copy_prefix(self, source: int, target: int, length: int, written: int, held: int) -> None:
        """Make the rows before `length` of `source`, which has `written` rows, those of `target`, which has `held`.

        The places of later rows become zero. So may those of the oldest rows that are left, a tile at most.
        """
        if source != target:
            self.forget(target, held)
            self._ring.copy(source, target, min(written, self._rows))
        if length == 0:
            self.forget(target, max(written, held))
            return
        start = max(length, written - self._rows)
        if start < written:
            first, last = start % self._rows, (written - 1) % self._rows + 1
            for low, high in ((first, last),) if first < last else ((first, self._rows), (0, last)):
                self._ring.clear(target, low, high)
