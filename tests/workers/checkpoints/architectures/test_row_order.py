"""The rows of queries, keys and values as they are read."""

import numpy as np
import pytest

from workers.checkpoints.architectures.row_order import RowOrder


def test_the_kinds_of_each_head_become_runs() -> None:
    assert RowOrder(2, 1, 1, 1, 2).rows().tolist() == [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]
    assert RowOrder(2, 2, 1, 1, 1).rows().tolist() == [0, 1, 4, 5, 2, 6, 3, 7]


def test_neighbours_become_halves_of_the_rotated_lanes_of_queries_and_keys() -> None:
    order = RowOrder(1, 1, 1, 1, 6, interleaved=4).rows().tolist()
    assert order == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17]


def test_every_row_is_read_once() -> None:
    order = RowOrder(3, 4, 1, 1, 10, interleaved=10)
    np.testing.assert_array_equal(np.sort(order.rows()), np.arange(3 * 6 * 10))


@pytest.mark.parametrize("interleaved", [3, 8])
def test_pairs_are_of_lanes_of_a_head(interleaved: int) -> None:
    with pytest.raises(ValueError, match=f"interleaved: {interleaved} is not an even number of 6 lanes"):
        RowOrder(1, 1, 0, 0, 6, interleaved=interleaved)
