"""How live rows are cut into blocks; nothing is compiled."""

import pytest

from workers.iree.kernels.heights import SHARE, Heights


@pytest.mark.parametrize("tallest", [6, 8, 24])
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
        (9, 24, ((9, 9),)),
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
