"""A KV cache in host memory, of one array for each group of layers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.iree.kv import HostKv
from workers.iree.kv_ring import HostRing


class HostKvGroups:
    """The rows of every slot in all arrays. The bytes of rows are those of the first array, then those of the next,
    without those of rings; of these the last rows are read and written apart."""

    def __init__(self, groups: Sequence[HostKv], rings: Sequence[int]) -> None:
        """`rings` has the rows of the rings of each array; 0 for one that has all rows."""
        self.groups = groups
        self._full = [group for group, rows in zip(groups, rings, strict=True) if not rows]
        self.dtype = groups[0].dtype
        """The type of the elements."""
        self._rings = [HostRing(group, rows) for group, rows in zip(groups, rings, strict=True) if rows]

    def forget(self, slot: int, rows: int) -> None:
        """See `HostKv.forget`."""
        for group in self._full:
            group.forget(slot, rows)
        for ring in self._rings:
            ring.forget(slot, rows)

    def copy_prefix(self, source: int, target: int, length: int, written: int, held: int, *, rings: bool) -> None:
        """Make the first `length` rows of `source`, which has `written` rows, those of `target`, which has `held`. Its
        other rows become zero, and without `rings` all rows of these."""
        for group in self._full:
            if source != target:
                group.copy(source, target, length)
            group.clear(target, length, held)
        for ring in self._rings:
            ring.copy_prefix(source, target, length if rings else 0, written, held)

    def read(self, slot: int, start: int, end: int) -> memoryview:
        """See `HostKv.read`."""
        sizes = [group.size_of(end - start) for group in self._full]
        rows = np.empty(sum(sizes), self.dtype)
        for group, part in zip(self._full, _parts(rows, sizes), strict=True):
            group.read_into(part, slot, start, end)
        return rows.data.cast("B")

    def write(self, slot: int, start: int, end: int, data: bytes | memoryview) -> None:
        """See `HostKv.write`."""
        rows, sizes = np.frombuffer(data, self.dtype), [group.size_of(end - start) for group in self._full]
        for group, part in zip(self._full, _parts(rows, sizes), strict=True):
            group.write(slot, start, end, part)

    def window_bytes(self, rows: int) -> int:
        """Return the bytes of so many rows of the rings of a slot."""
        return sum(ring.size_of(rows) for ring in self._rings) * self.dtype.itemsize

    def read_windows(self, slot: int, start: int, end: int) -> NDArray[Any]:
        """Return a copy of rows `start .. end` of the rings of a slot, in one dimension."""
        sizes = [ring.size_of(end - start) for ring in self._rings]
        rows = np.empty(sum(sizes), self.dtype)
        for ring, part in zip(self._rings, _parts(rows, sizes), strict=True):
            ring.read_into(part, slot, start, end)
        return rows

    def write_windows(self, slot: int, start: int, end: int, rows: NDArray[Any]) -> None:
        """Write what `read_windows` has returned for these rows."""
        sizes = [ring.size_of(end - start) for ring in self._rings]
        for ring, part in zip(self._rings, _parts(rows, sizes), strict=True):
            ring.write(slot, start, end, part)


def _parts(rows: NDArray[Any], sizes: Sequence[int]) -> list[NDArray[Any]]:
    if len(sizes) == 1:  # splitting takes as long as copying a small block
        return [rows]
    return np.split(rows, np.cumsum(sizes)[:-1])
