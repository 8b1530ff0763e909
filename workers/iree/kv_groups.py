"""A KV cache in host memory, of one array for each group of layers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.iree.kv import HostKv


class HostKvGroups:
    """The rows of every slot in all arrays. The bytes of rows are those of the first array, then those of the next."""

    def __init__(self, groups: Sequence[HostKv]) -> None:
        self.groups = groups

    def clear(self, slot: int, start: int, end: int) -> None:
        """See `HostKv.clear`."""
        for group in self.groups:
            group.clear(slot, start, end)

    def forget(self, slot: int, rows: int) -> None:
        """See `HostKv.forget`."""
        for group in self.groups:
            group.forget(slot, rows)

    def copy(self, source: int, target: int, length: int) -> None:
        """See `HostKv.copy`."""
        for group in self.groups:
            group.copy(source, target, length)

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
