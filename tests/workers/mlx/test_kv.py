"""A slot's buffers: they grow, are written in place, and belong to one sequence."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from workers.mlx.kv import GROWTH, FreshRows, LayerCache, Segment, SlotKV


def rows(first: int, count: int) -> mx.array:
    """[1, 2 heads, count, 4]: each row holds its own number."""
    return mx.broadcast_to(mx.arange(first, first + count, dtype=mx.float32)[None, None, :, None], (1, 2, count, 4))


def test_an_empty_slot_holds_nothing() -> None:
    slot = SlotKV(3)
    assert (slot.nbytes, slot.arrays, slot.length) == (0, [], 0)


@pytest.mark.parametrize(("count", "capacity"), [(1, GROWTH), (GROWTH, GROWTH), (GROWTH + 1, 2 * GROWTH)])
def test_buffers_grow_in_steps(count: int, capacity: int) -> None:
    slot = SlotKV(1)
    keys, values = slot.write(0, 0, rows(0, count), rows(9, count))
    assert keys.shape == values.shape == (1, 2, count, 4)
    assert [array.shape for array in slot.arrays] == [(1, 2, capacity, 4)] * 2
    assert slot.nbytes == 2 * 2 * capacity * 4 * 4


def test_growth_keeps_what_was_written() -> None:
    slot = SlotKV(1)
    slot.write(0, 0, rows(0, GROWTH - 1), rows(0, GROWTH - 1))
    keys, values = slot.write(0, GROWTH - 1, rows(GROWTH - 1, 3), rows(GROWTH - 1, 3))
    for held in (keys, values):
        np.testing.assert_array_equal(np.array(held)[0, 1, :, 0], np.arange(GROWTH + 2))


def test_rows_are_written_over() -> None:
    slot = SlotKV(1)
    slot.write(0, 0, rows(0, 8), rows(0, 8))
    keys, _ = slot.write(0, 3, rows(100, 2), rows(100, 2))
    np.testing.assert_array_equal(np.array(keys)[0, 0, :, 0], [0, 1, 2, 100, 101])


def test_fresh_rows_are_no_array() -> None:
    """A model that does not call the bound attention must fail, not attend to the new rows only."""
    cache = LayerCache(0, [Segment(SlotKV(1), 0, 1)], mx.array([0]))
    keys, values = cache.update_and_fetch(mx.zeros((1, 2, 1, 4)), mx.zeros((1, 2, 1, 4)))
    assert isinstance(keys, FreshRows)
    attention: Any = mx.fast.scaled_dot_product_attention
    with pytest.raises(TypeError):
        attention(mx.zeros((1, 2, 1, 4)), keys, values, scale=1.0)
