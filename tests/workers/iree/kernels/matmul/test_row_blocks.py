"""How live rows are cut into blocks; nothing is compiled."""

import pytest

from workers.iree.kernels.matmul.row_blocks import SHARE, Heights


@pytest.mark.parametrize("tallest", [6, 8, 14, 24])
@pytest.mark.parametrize("rows", [5, 8, 16, 32, 48])
def test_blocks_hold_all_live_rows_and_few_others(rows: int, tallest: int) -> None:
    heights = Heights(rows, tallest)
    for live in range(1, rows + 1):
        height, blocks = heights.height(live), -(-live // tallest)
        assert height <= min(rows, tallest)
        assert height * blocks >= min(live, rows)
        even = -(-live // blocks)
        assert height - even <= even // SHARE


@pytest.mark.parametrize(
    ("rows", "tallest", "limits"),
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
    rows: int, tallest: int, limits: tuple[tuple[int, int], ...]
) -> None:
    heights = Heights(rows, tallest)
    assert heights.limits == limits
    assert heights.all == tuple(sorted({height for _, height in limits}))


def test_blocks_of_a_height_are_as_many_as_all_its_rows_have() -> None:
    heights = Heights(32, 14)
    assert {height: heights.blocks(height) for height in heights.all} == dict.fromkeys(range(9, 15), 2)
    assert [Heights(16, 14).blocks(height) for height in (8, 14)] == [2, 1]
