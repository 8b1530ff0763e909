"""Division of live rows into blocks. Nothing is compiled."""

import pytest

from workers.iree.kernels.matmul.row_blocks import ROWS_PER_PADDING_ROW, RowBlocks


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
