"""Division of live rows into blocks. Nothing is compiled."""

from collections.abc import Callable
from typing import Any

import pytest

from workers.iree.kernels.ir.live_rows import SEQUENCE_ROWS
from workers.iree.kernels.matmul.row_blocks import ROWS_PER_PADDING_ROW, ManyRowBlocks, RowBlocks


@pytest.mark.parametrize("max_height", [6, 8, 14, 24])
@pytest.mark.parametrize("rows", [5, 8, 16, 32, 48])
def test_blocks_hold_all_live_rows_and_few_others(rows: int, max_height: int) -> None:
    row_blocks = RowBlocks(rows, max_height)
    for live in range(1, rows + 1):
        height, blocks = row_blocks.height(live), -(-live // max_height)
        assert height <= min(rows, max_height)
        assert height * blocks >= min(live, rows)
        even = -(-live // blocks)
        assert height - even <= even // ROWS_PER_PADDING_ROW


@pytest.mark.parametrize(
    ("rows", "max_height", "limits"),
    [
        (8, 24, ((5, 5), (6, 6), (7, 7), (8, 8))),
        (9, 14, ((9, 9),)),
        (16, 14, ((9, 9), (10, 10), (11, 11), (12, 12), (13, 13), (14, 14), (16, 8))),
        (32, 14, ((18, 9), (20, 10), (22, 11), (24, 12), (26, 13), (28, 14), (30, 10), (32, 11))),
        (32, 24, ((18, 18), (20, 20), (22, 22), (24, 24), (26, 13), (28, 14), (30, 15), (32, 16))),
        (16, 6, ((10, 5), (12, 6), (15, 5), (16, 6))),
    ],
)
def test_heights_are_those_that_no_smaller_graph_has(
    rows: int, max_height: int, limits: tuple[tuple[int, int], ...]
) -> None:
    row_blocks = RowBlocks(rows, max_height)
    assert row_blocks.limits == limits
    assert row_blocks.heights == tuple(sorted({height for _, height in limits}))


def test_blocks_of_a_height_are_as_many_as_all_its_rows_have() -> None:
    row_blocks = RowBlocks(32, 14)
    assert {height: row_blocks.min_blocks(height) for height in row_blocks.heights} == dict.fromkeys(range(9, 15), 2)
    assert [RowBlocks(16, 14).min_blocks(height) for height in (8, 14)] == [2, 1]


class Number(int):
    """A `Value` of which the number is known."""

    def __add__(self, other: int) -> "Number":
        return Number(int(self) + other)

    def __sub__(self, other: int) -> "Number":
        return Number(int(self) - other)

    def __mul__(self, other: int) -> "Number":
        return Number(int(self) * other)

    def __floordiv__(self, other: int) -> "Number":
        return Number(int(self) // other)

    def minimum(self, other: int) -> "Number":
        return Number(min(self, other))

    def maximum(self, other: int) -> "Number":
        return Number(max(self, other))


class Branches:
    """A `Code` that takes the branches whose conditions hold."""

    def when(self, condition: bool, body: Callable[[], None]) -> None:
        if condition:
            body()


@pytest.mark.parametrize("height", range(1, 17))
def test_blocks_of_many_rows_hold_all_live_rows(height: int) -> None:
    blocks: Any = ManyRowBlocks(height)
    for live in map(Number, range(1, 200)):
        first = [blocks.first(Number(block), live) for block in range(blocks.count(live))]
        rows = {row + i for row in first for i in range(height)}
        lower: list[tuple[int, int]] = []
        blocks.write_last(Branches(), live, lambda row, rows, lower=lower: lower.append((row, rows)))
        rows |= {row + i for row, count in lower for i in range(count)}
        assert rows >= set(range(live))
        assert max(rows) < max(live, height)
        if live % SEQUENCE_ROWS == 0:
            assert len(first) * height + sum(count for _, count in lower) < live + height
