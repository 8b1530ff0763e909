"""Attention of some sequences by the kernels, and what numpy expects of it."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.workers.iree.kernels.running import NUMPY, Run, floats, random, rounded
from workers.iree.kernels.attention.attention import attention, merge_attention, split_attention
from workers.iree.kernels.attention.rope_and_cache import RopeAndCache, rope_and_cache
from workers.iree.kernels.attention.shape import CAPACITY_MULTIPLE, Attention, AttentionShape
from workers.iree.kernels.ir.arithmetic import Arithmetic
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
