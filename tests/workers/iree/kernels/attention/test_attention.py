"""RoPE, cache writes and attention against numpy, and the same bits whatever rows stand beside a row."""

from typing import Any

import numpy as np
import pytest

from tests.workers.iree.kernels.attention.attended import Attended
from tests.workers.iree.kernels.running import ARITHMETICS, TOLERANCE, Run
from workers.iree.kernels.attention.shape import CAPACITY_MULTIPLE, KV_BLOCK, MAX_QUERY_BLOCKS, Attention
from workers.iree.kernels.attention.unpacked_block import MAX_HEAD_DIM, UnpackedBlock
from workers.iree.kernels.ir.arithmetic import Arithmetic, FloatFma
from workers.iree.kernels.ir.mlir_types import LANES

KINDS: dict[str, tuple[float | None, dict[str, Any], int]] = {
    "plain": (None, {}, 0),
    "head-norms": (1e-6, {}, 0),
    "window": (None, {"window": 70}, 0),
    "softcap": (None, {"softcap": 2.0}, 0),
    "window-int8": (None, {"window": 70}, 8),
    "softcap-int4": (None, {"softcap": 2.0}, 4),
    "sinks-int8": (None, {"window": 70, "sinks": True}, 8),
}
WITH = {
    "plain": ("f32", "bf16-widened", "bf16-pairs"),
    "head-norms": ("bf16-widened",),
    "window": ("f32",),
    "softcap": ("bf16-widened",),
    "window-int8": ("bf16-widened",),
    "softcap-int4": ("f32", "bf16-pairs"),
    "sinks-int8": ("f32",),
}
"""The arithmetics that the whole suite runs a kind with."""


@pytest.mark.parametrize(
    ("arithmetic", "eps", "options", "bits"),
    [
        pytest.param(
            *each.values,
            *KINDS[kind],
            id=f"{kind}-{each.id}",
            marks=[*each.marks, *([] if each.id in WITH[kind] else [pytest.mark.exhaustive])],
        )
        for kind in KINDS
        for each in (ARITHMETICS[0], *ARITHMETICS[-2:])
    ],
)
def test_attention(run: Run, arithmetic: Arithmetic, eps: float | None, options: dict[str, Any], bits: int) -> None:
    held = Attended(run, arithmetic, eps=eps, bits=bits)
    prompt = np.arange(300, dtype=np.int32)[None]
    held.place([2], np.arange(3, dtype=np.int32)[None])
    q = held.place([1], prompt)
    whole = held.attend(q, [1], prompt, **options)
    atol = TOLERANCE[arithmetic.element] * 4
    for row in (0, 31, 32, 63, 64, 149, 254, 255, 256, 257, 299):
        np.testing.assert_allclose(whole[row], held.expected(1, row, **options), atol=atol)

    # One row of each of two slots, and a padding row between them, in another order.
    rows = np.array([[2], [held.capacity - 1], [299]], np.int32)
    slots = [2, 1, 1]
    mixed = held.attend(held.place(slots, rows), slots, rows, **options)
    np.testing.assert_allclose(mixed[0], held.expected(2, 2, **options), atol=atol)
    np.testing.assert_array_equal(mixed[2], whole[299])

    # Three threads share the contexts of two heads: more KV blocks than workgroups, so that some do several.
    rows, slots = np.concatenate([rows, *[rows[2:]] * 5]), slots + [1] * 5
    q = held.place(slots, rows)
    shared = held.attend(q, slots, rows, threads=3, **options)
    np.testing.assert_array_equal(shared[0], mixed[0])
    np.testing.assert_array_equal(shared[2:], np.repeat(mixed[2:], 6, axis=0))


@pytest.mark.parametrize("arithmetic", ARITHMETICS[-1:])
@pytest.mark.parametrize("depth", [MAX_HEAD_DIM, MAX_HEAD_DIM + 128])
def test_levels_of_wide_heads_fit_into_the_stack(run: Run, arithmetic: Arithmetic, depth: int) -> None:
    """As many query blocks as an item may have, of pairs of bf16, which levels are unpacked to."""
    held = Attended(run, arithmetic, eps=None, bits=4, depth=depth, queries=16)
    rows = np.arange(8, dtype=np.int32)[None]
    kind = Attention(held.shape_of(*rows.shape), arithmetic)
    assert kind.item_blocks == MAX_QUERY_BLOCKS
    assert UnpackedBlock.pays(kind) == (depth == MAX_HEAD_DIM)
    out = held.attend(held.place([1], rows), [1], rows)
    np.testing.assert_allclose(out[7], held.expected(1, 7), atol=TOLERANCE[arithmetic.element] * 4)


RINGS = {"f32": (0, 0), "bf16-int4": (2, 4)}


@pytest.mark.parametrize(
    ("arithmetic", "bits"),
    [
        pytest.param(*each, id=name, marks=[] if name == "bf16-int4" else pytest.mark.exhaustive)
        for name, each in RINGS.items()
    ],
)
def test_a_ring_gives_the_bits_of_all_rows(run: Run, arithmetic: int, bits: int) -> None:
    """Within a window, for a chunk that begins before the place where the ring does and ends behind it."""
    kind: Any = ARITHMETICS[arithmetic].values[0]
    chunks = [np.arange(start, end, dtype=np.int32)[None] for start, end in ((0, 100), (100, 200), (200, 300))]
    last, slots = np.array([[299], [319 + CAPACITY_MULTIPLE], [298], [299]], np.int32), [1] * 4
    results = []
    for ring in (0, KV_BLOCK * 2):
        held = Attended(run, kind, eps=None, bits=bits, ring=ring)
        out = [held.attend(held.place([1], rows), [1], rows, window=70) for rows in chunks]
        single = held.attend(held.place(slots, last), slots, last, window=70, threads=3)
        results.append(np.concatenate([*out, single[[0, 2, 3]]]))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[1][-1], results[1][299])


UNEQUAL = {"narrow-f32": (0, 64, 32, 0), "narrow-int4": (2, 64, 32, 4), "wide-int8": (2, 48, 80, 8)}


@pytest.mark.parametrize(
    ("arithmetic", "depth", "values", "bits"),
    [
        pytest.param(*each, id=name, marks=[] if name == "wide-int8" else pytest.mark.exhaustive)
        for name, each in UNEQUAL.items()
    ],
)
def test_values_may_have_another_width_than_keys(run: Run, arithmetic: int, depth: int, values: int, bits: int) -> None:
    kind: Any = ARITHMETICS[arithmetic].values[0]
    held = Attended(run, kind, eps=None, bits=bits, depth=depth, values=values)
    prompt = np.arange(300, dtype=np.int32)[None]
    q = held.place([1], prompt)
    np.testing.assert_array_equal(held.place([1], prompt, writes=False), q)
    out = held.attend(q, [1], prompt)
    for row in (0, 127, 128, 299):
        np.testing.assert_allclose(out[row], held.expected(1, row), atol=TOLERANCE[kind.element] * 4)
    rows, slots = np.full((3, 1), 299, np.int32), [1] * 3
    shared = held.attend(held.place(slots, rows), slots, rows, threads=3)
    np.testing.assert_array_equal(shared, np.repeat(out[299:], 3, axis=0))


def test_padding_rows_widen_no_window(run: Run) -> None:
    """A chunk that is filled up with padding rows reads no more of its slot than the window of its own rows."""
    held = Attended(run, FloatFma("f32", 16), eps=None)
    held.place([1], np.arange(300, dtype=np.int32)[None])
    chunk = np.array([[*range(290, 300), *[held.capacity - 1] * 6]], np.int32)
    q = held.place([1], chunk)
    # Of the first lanes: a value that is read spoils every row, whatever its weight.
    held.cache[..., : 100 * LANES] = np.nan
    out = held.attend(q, [1], chunk, window=70)
    np.testing.assert_allclose(out[9], held.expected(1, 299, 70), atol=TOLERANCE[held.arithmetic.element] * 4)


def test_tokens_see_the_positions_of_their_ranges(run: Run) -> None:
    """With the bits of the same positions without ranges: those of a window, of an image, and up to the row."""
    held = Attended(run, FloatFma("f32", 16), eps=None)
    rows = np.arange(300, dtype=np.int32)[None]
    q = held.place([1], rows)
    ranges = np.stack([np.maximum(rows - 69, 0), rows])
    ranges[0, :, :100] = 0
    ranges[:, :, 150:260] = np.array([0, 259])[:, None, None]
    out = held.attend(q, [1], rows, ranges)
    windowed, image = held.attend(q, [1], rows, window=70), held.attend(q, [1], np.full_like(rows, 259))
    np.testing.assert_array_equal(out[:70], windowed[:70])
    np.testing.assert_array_equal(out[100:150], windowed[100:150])
    np.testing.assert_array_equal(out[260:], windowed[260:])
    np.testing.assert_array_equal(out[150:260], image[150:260])
    np.testing.assert_allclose(out[99], held.expected(1, 99), atol=TOLERANCE[held.arithmetic.element] * 4)
