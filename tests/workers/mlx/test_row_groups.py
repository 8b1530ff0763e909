"""Grouping of segments that attend together."""

import pytest

from workers.mlx.row_groups import Segment, group_segments, rows_as_given


def row(place: int, start: int = 10, capacity: int = 256, count: int = 1) -> Segment:
    return Segment(start, count, capacity, place)


@pytest.mark.parametrize(
    ("segments", "groups"),
    [
        ([], []),
        ([row(0), row(1), row(2)], [[0, 1, 2]]),
        ([row(2), row(0), row(1)], [[1, 2, 0]]),
        ([row(0), row(2), row(3)], [[0], [1, 2]]),
        ([row(0), row(1, start=300, capacity=512)], [[0], [1]]),
        ([row(0), row(1, count=32), row(2), row(3)], [[0], [1], [2, 3]]),
        ([row(0, 10), row(1, 75), row(2, 74)], [[0], [1, 2]]),
        ([row(0, 74), row(1, 42), row(2, 10), row(3, 75)], [[0, 1, 2], [3]]),
    ],
    ids=["none", "adjacent", "in order of place", "gap", "capacities", "chunk", "longer", "shortest to longest"],
)
def test_groups(segments: list[Segment], groups: list[list[int]]) -> None:
    assert group_segments(segments, 64) == groups


def test_rows_are_put_back() -> None:
    counts, order = [1, 3, 2], [2, 0, 1]
    computed = [(index, row) for index in order for row in range(counts[index])]
    assert [computed[at] for at in rows_as_given(counts, order)] == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
