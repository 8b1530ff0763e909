"""Attention over several slots in one call: on a CPU under Linux, each row gets the bits that it gets alone."""

import sys
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from workers.mlx.attention import AttentionGroup, FreshRows, LayerCache
from workers.mlx.kv import Slab
from workers.mlx.row_groups import Segment

STARTS = (0, 1, 2, 7, 15, 16, 31, 63, 64, 100, 127, 200, 254, 255)
HEADS, KV_HEADS, WIDTH, CAPACITY = 6, 2, 16, 256


@pytest.fixture(autouse=True)
def on_the_cpu() -> Any:
    with mx.stream(mx.cpu):
        yield


def random(shape: tuple[int, ...], seed: int, dtype: mx.Dtype) -> mx.array:
    return mx.array(np.random.default_rng(seed).standard_normal(shape), dtype=mx.float32).astype(dtype)


def slab_of(places: int, dtype: mx.Dtype) -> Slab:
    """A slab whose places are filled with finite numbers to their last row."""
    shape = (places, KV_HEADS, CAPACITY, WIDTH)
    return Slab([*range(places)], [[random(shape, part, dtype) for part in (0, 1)]], [0])


def attend(slab: Slab, groups: list[list[int]], window: int | None, cap: float | None, dtype: mx.Dtype) -> mx.array:
    """Attention of a decode row at each place, computed in these groups."""
    count = len(STARTS)
    made = [
        AttentionGroup(slab, [Segment(STARTS[place], 1, CAPACITY, place) for place in group], by_kv_head=True)
        for group in groups
    ]
    queries, keys, values = (
        random((count, heads, 1, WIDTH), 90 + part, dtype) for part, heads in enumerate((HEADS, KV_HEADS, KV_HEADS))
    )
    return LayerCache(0, made, mx.array(STARTS), window, cpu=True).attend(queries, keys, values, 0.25, cap)


@pytest.mark.skipif(sys.platform == "darwin", reason="sums depend on the number of keys there, so nothing is padded")
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("cap", [None, 3.0])
def test_padding_changes_no_bit(dtype: mx.Dtype, window: int | None, cap: float | None) -> None:
    count = len(STARTS)
    alone = attend(slab_of(count, dtype), [[place] for place in range(count)], window, cap, dtype)
    together = attend(slab_of(count, dtype), [[*range(count)]], window, cap, dtype)
    assert mx.array_equal(together, alone)
    halves = attend(slab_of(count, dtype), [[*range(5)], [*range(5, count)]], window, cap, dtype)
    assert mx.array_equal(halves, alone)


@pytest.mark.parametrize("by_kv_head", [True, False])
def test_rows_are_those_of_plain_attention(by_kv_head: bool) -> None:
    """On the path of a GPU too, which gives MLX all heads as they are."""
    slab, start, window = slab_of(2, mx.float32), 70, 40
    groups = [AttentionGroup(slab, [Segment(start, 1, CAPACITY, place) for place in (0, 1)], by_kv_head=by_kv_head)]
    queries, keys, values = (random((2, heads, 1, WIDTH), heads, mx.float32) for heads in (HEADS, KV_HEADS, KV_HEADS))
    output = LayerCache(0, groups, mx.array([start] * 2), window, cpu=True).attend(queries, keys, values, 0.25)
    for place in (0, 1):
        held = [np.array(part[place, :, start + 1 - window : start + 1]) for part in slab.buffers[0]]
        np.testing.assert_array_equal(held[0][:, -1], np.array(keys[place, :, 0]))
        wide_keys, wide_values = (part.repeat(HEADS // KV_HEADS, axis=0) for part in held)
        scores = np.einsum("hd,hkd->hk", np.array(queries[place, :, 0]), wide_keys) * 0.25
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        expected = np.einsum("hk,hkd->hd", shares / shares.sum(axis=-1, keepdims=True), wide_values)
        np.testing.assert_allclose(np.array(output[place, :, 0]), expected, rtol=1e-5, atol=1e-5)


def test_a_row_that_is_not_finite_spoils_no_other() -> None:
    count, slab = len(STARTS), slab_of(len(STARTS), mx.float32)
    expected = attend(slab, [[*range(count)]], None, None, mx.float32)
    for buffer in slab.buffers[0]:
        buffer[9, :, 3] = float("nan")
    output = attend(slab, [[*range(count)]], None, None, mx.float32)
    others = mx.array([place for place in range(count) if place != 9])
    assert mx.array_equal(output[others], expected[others])
    assert mx.isnan(output[9]).all()


def test_fresh_rows_are_no_array() -> None:
    """A model that does not call the bound attention must fail, not attend to the new rows only."""
    cache = LayerCache(0, [], mx.array([0]), cpu=True)
    keys, values = cache.update_and_fetch(mx.zeros((1, 2, 1, 4)), mx.zeros((1, 2, 1, 4)))
    assert isinstance(keys, FreshRows)
    attention: Any = mx.fast.scaled_dot_product_attention
    with pytest.raises(TypeError):
        attention(mx.zeros((1, 2, 1, 4)), keys, values, scale=1.0)
