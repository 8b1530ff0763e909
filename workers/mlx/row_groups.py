"""Grouping of the segments of a forward that attend together; pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Segment:
    """The rows of one slot in a forward: `count` tokens that go to cache rows `start ..`, and the slot's place."""

    start: int
    count: int
    capacity: int
    place: int
    ends: tuple[int, ...] | None = None
    """`Chunk.ends` of the tokens."""

    @property
    def end(self) -> int:
        return self.start + self.count


def group_segments(segments: Sequence[Segment], padding: int) -> list[list[int]]:
    """Group segments, given by their index.

    A group is one chunk of a prompt, or decode rows at adjacent places of one slab whose lengths differ by at most
    `padding`: each row costs as much as the longest of its group.
    """
    order = sorted(range(len(segments)), key=lambda index: (segments[index].capacity, segments[index].place))
    groups: list[list[int]] = []
    for index in order:
        if groups and _joins([segments[each] for each in groups[-1]], segments[index], padding):
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def rows_as_given(counts: Sequence[int], order: Sequence[int]) -> list[int]:
    """Indices that put rows back: segments of so many rows each were computed in this order."""
    first = dict(zip(order, accumulate((counts[index] for index in order), initial=0), strict=False))
    return [first[index] + row for index, count in enumerate(counts) for row in range(count)]


def _joins(group: Sequence[Segment], new: Segment, padding: int) -> bool:
    last, ends = group[-1], [new.end, *(segment.end for segment in group)]
    return (
        last.count == new.count == 1
        and last.capacity == new.capacity
        and last.place + 1 == new.place
        and max(ends) - min(ends) <= padding
    )
