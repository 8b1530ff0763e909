"""Partitions of a kernel's work among threads."""

from dataclasses import dataclass
from typing import TypeVar

from workers.iree.kernels.ir.value import Value

Index = TypeVar("Index", int, Value)
"""A number, or the value that a kernel computes."""

PARTITIONS_PER_THREAD = 7
"""The most workgroups for each thread. From eight on, IREE hands out several at a time
(`IREE_TASK_DISPATCH_MAX_TILES_PER_SHARD_RESERVATION`): with 14 per thread, it would hand out 8 at a time, 16 to one
thread and 12 to the other."""


@dataclass(frozen=True, slots=True)
class Partition:
    """One of `count` parts of the work."""

    number: Value
    count: int

    def even_range(self, total: Value) -> tuple[Value, Value]:
        """Return the first of `total` items in this part, and the end. Parts with one item more come first."""

        def first(part: Value) -> Value:
            return (part * total + (self.count - 1)) // self.count

        return first(self.number), first(self.number + 1)

    def tapered_range(self, total: int | Value) -> tuple[Value, Value]:
        """Return the first of `total` items in this part, and the end; each part is smaller than the one before.

        The first has nearly twice the average and the last next to nothing, so that threads that began at
        different times, or run at different speeds, end together (trapezoid self-scheduling,
        https://doi.org/10.1109/71.205655).
        """
        return self.tapered_start(total), self.tapered_start(total, self.number + 1)

    def tapered_start(self, total: int | Value, part: Value | None = None) -> Value:
        """Return the first item of this part or another one, as `tapered_range` divides them."""
        return _tapered_start(total, self.number if part is None else part, self.count)

    def next(self) -> Value:
        """Return the part that this part's thread most likely takes next, if threads take turns; the last part if there
        are no more."""
        return (self.number + max(1, self.count // PARTITIONS_PER_THREAD)).minimum(self.count - 1)


def tapered_starts(total: int, count: int) -> list[int]:
    """Return where each of `count` parts begins as `Partition.tapered_range` divides `total` items, and the end."""
    return [_tapered_start(total, part, count) for part in range(count + 1)]


def partition_count(parts: int, threads: int) -> int:
    """Return how many workgroups the work is divided among, of which `parts` is the finest division."""
    return min(parts, PARTITIONS_PER_THREAD * threads)


def _tapered_start(total: int | Index, part: Index, count: int) -> Index:
    left = count - part
    return total - left * left * total // (count * count)
