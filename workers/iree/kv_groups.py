"""A KV cache in host memory, of one array for each group of layers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.iree.kv import HostKv
from workers.iree.kv_ring import HostRing


class HostKvGroups:
    """The rows of every slot in all arrays. The bytes of rows are those of the first array, then those of the next;
    none are read where an array has rings."""

    def __init__(self, groups: Sequence[HostKv], rings: Sequence[int]) -> None:
        """`rings` has the rows of the rings of each array; 0 for one that has all rows."""
        self.groups = groups
        self._full = [group for group, rows in zip(groups, rings, strict=True) if not rows]
        self._rings = [HostRing(group, rows) for group, rows in zip(groups, rings, strict=True) if rows]

    def forget(self, slot: int, rows: int) -> None:
        """See `HostKv.forget`."""
        for group in self._full:
            group.forget(slot, rows)
        for ring in self._rings:
            ring.forget(slot, rows)

    def copy_prefix(self, source: int, target: int, length: int, written: int, held: int) -> None:
        """Make the first `length` rows of `source`, which has `written` rows, those of `target`, which has `held`. Its
        other rows become zero."""
        for group in self._full:
            if source != target:
                group.copy(source, target, length)
            group.clear(target, length, held)
        for ring in self._rings:
            ring.copy_prefix(source, target, length, written, held)

    def read(self, slot: int, start: int, end: int) -> memoryview:
        """See `HostKv.read`."""
        sizes = [group.size_of(end - start) for group in self.groups]
        rows = np.empty(sum(sizes), self.groups[0].dtype)
        for group, part in zip(self.groups, _parts(rows, sizes), strict=True):
            group.read_into(part, slot, start, end)
        return rows.data.cast("B")

    def write(self, slot: int, start: int, end: int, data: bytes | memoryview) -> None:
        """See `HostKv.write`."""
        rows, sizes = np.frombuffer(data, self.groups[0].dtype), [group.size_of(end - start) for group in self.groups]
        for group, part in zip(self.groups, _parts(rows, sizes), strict=True):
            group.write(slot, start, end, part)


def _parts(rows: NDArray[Any], sizes: Sequence[int]) -> list[NDArray[Any]]:
    return np.split(rows, np.cumsum(sizes)[:-1])
