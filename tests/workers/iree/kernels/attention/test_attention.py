"""RoPE, cache writes and attention against numpy, and the same bits whatever rows stand beside a row."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.workers.iree.kernels.running import ARITHMETICS, NUMPY, TOLERANCE, Run, floats, random, rounded
from workers.iree.kernels.attention.attention import attention, merge_attention, split_attention
from workers.iree.kernels.attention.rope_and_cache import RopeAndCache, rope_and_cache
from workers.iree.kernels.attention.shape import (
    CAPACITY_MULTIPLE,
    KV_BLOCK,
    MAX_QUERY_BLOCKS,
    Attention,
    AttentionShape,
)
from workers.iree.kernels.attention.unpacked_block import MAX_HEAD_DIM, UnpackedBlock
from workers.iree.kernels.ir.arithmetic import Arithmetic, FloatFma
from workers.iree.kernels.ir.mlir_types import LANES
from workers.precision import max_level


class Attended:
    """Some sequences in a cache: placed row by row with the kernel, and in plain float32 beside it."""

    def __init__(
        self,
        run: Run,
        arithmetic: Arithmetic,
        *,
        eps: float | None,
        bits: int = 0,
        depth: int = 32,
        queries: int = 4,
        values: int = 0,
        ring: int = 0,
    ) -> None:
        self.run, self.arithmetic, self.eps, self.bits = run, arithmetic, eps, bits
        self.lengths = {1: 300, 2: 3}
        self.depth, self.values, self.queries, self.heads = depth, values or depth, queries, 2
        self.ring, self.attended = ring, 5 * CAPACITY_MULTIPLE
        self.capacity = (ring or self.attended) + CAPACITY_MULTIPLE
        self.norms = [random(self.depth, seed=8), random(self.depth, seed=9)]
        kind = np.int8 if bits else NUMPY[arithmetic.element]
        self.cache = np.zeros(self.shape_of(1, 1).cache, kind)
        self.qkv = {slot: random(n, self.shape_of(1, 1).qkv_width, seed=slot) for slot, n in self.lengths.items()}

    def shape_of(self, batch: int, tokens: int) -> AttentionShape:
        return AttentionShape(
            layers=2, slots=3, query_heads=self.queries, kv_heads=self.heads, head_dim=self.depth,
            capacity=self.capacity, attended=self.attended, batch=batch, tokens=tokens, scale=0.5, ring=self.ring,
            rope_dims=self.depth, bits=self.bits, value_width=self.values,
        )  # fmt: skip

    def angles(self, rows: NDArray[np.int32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        angle = rows.reshape(-1, 1) * np.linspace(1.0, 0.01, self.depth // 2)
        return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)

    def place(self, slots: list[int], rows: NDArray[np.int32], *, writes: bool = True) -> NDArray[np.int32]:
        batch, tokens = rows.shape
        qkv = np.concatenate([self.qkv[slot][at % self.lengths[slot]] for slot, at in zip(slots, rows, strict=True)])
        kind = RopeAndCache(
            self.shape_of(batch, tokens), self.arithmetic, self.eps or 0.0, "each" if self.eps else None
        )
        norms, layer = self.norms if self.eps is not None else [], np.array([1, 2], np.int32)
        operands = (*self.angles(rows), np.array(slots, np.int32), rows, layer, *norms)
        if not writes:
            kind = replace(kind, writes=False)
            qkv = np.ascontiguousarray(qkv[:, : self.queries * self.depth])
            (q,) = self.run(rope_and_cache("rope_and_cache", kind), qkv, *operands)
            return q.reshape(batch * tokens, -1)
        q, cache = self.run(rope_and_cache("rope_and_cache", kind), qkv, *operands, self.cache)
        self.cache = cache.view(self.cache.dtype)
        return q.reshape(batch * tokens, -1)

    def attend(
        self,
        q: NDArray[np.int32],
        slots: list[int],
        rows: NDArray[np.int32],
        ranges: NDArray[np.int32] | None = None,
        **options: Any,
    ) -> NDArray[np.float32]:
        kind = Attention(self.shape_of(*rows.shape), self.arithmetic, ranges=ranges is not None, **options)
        operands = [q, np.array(slots, np.int32), rows, np.array([1, 2], np.int32), self.cache]
        operands += [] if ranges is None else [ranges]
        sinks = [SINKS] if kind.sinks else []
        if kind.split:
            (sums,) = self.run(split_attention("split", kind), *operands)
            (out,) = self.run(merge_attention("merge", kind), sums, rows, *sinks)
        else:
            (out,) = self.run(attention("attention", kind), *operands, *sinks)
        return floats(out, self.queries * self.values, self.arithmetic)

    def stored(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Round keys or values, [rows, heads, depth], as the cache stores them."""
        if not self.bits:
            return rounded(x, self.arithmetic)
        scale = np.maximum(np.abs(x).max(-1, keepdims=True), 1e-30) / np.float32(max_level(self.bits))
        stored: NDArray[np.float32] = np.round(x / scale) * scale
        return stored

    def expected(
        self, slot: int, row: int, window: int = 0, softcap: float = 0.0, *, sinks: bool = False
    ) -> NDArray[np.float32]:
        rows = np.arange(row + 1, dtype=np.int32)
        cos, sin = (x[:, None, :] for x in self.angles(rows))
        half = self.depth // 2

        def turned(x: NDArray[np.float32], weight: NDArray[np.float32]) -> NDArray[np.float32]:
            if self.eps is not None:
                x = x / np.sqrt((x**2).mean(-1, keepdims=True) + self.eps) * weight
            a, b = x[..., :half], x[..., half:]
            return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

        at = (self.queries * self.depth, (self.queries + self.heads) * self.depth)
        given = np.split(self.qkv[slot][: row + 1], at, axis=1)
        widths = (self.depth, self.depth, self.values)
        queries, keys, values = (x.reshape(row + 1, -1, width) for x, width in zip(given, widths, strict=True))
        q = turned(queries, self.norms[0])[row] * 0.5
        k = self.stored(turned(keys, self.norms[1]))
        v = self.stored(values)
        out = []
        for head in range(self.queries):
            shared = head // (self.queries // self.heads)
            score = k[:, shared] @ q[head]
            score = softcap * np.tanh(score / softcap) if softcap else score
            score[: max(0, row + 1 - window) if window else 0] = -np.inf
            sink = SINKS[head] if sinks else np.float32(-np.inf)
            top = np.maximum(score.max(), sink)
            weight = np.exp(score - top)
            out.append(weight @ v[:, shared] / (weight.sum() + np.exp(sink - top)))
        return np.concatenate(out)


SINKS = np.array([-40.0, 0.5, 3.0, 60.0], np.float32)
"""Logits of sinks: one that is next to nothing, and one beside which the scores are."""
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
