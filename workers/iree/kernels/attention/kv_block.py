"""Attention of a block of query rows to one KV block: scores, their softmax, and the values' weighted sums.

Keys and values are read once for all rows of a query block, widened in registers. While one of them is read the other
is prefetched, so far ahead that it comes in time, and memory is never idle while scores become weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from workers.iree.kernels.attention.online_softmax import LOW, SoftmaxState, exp
from workers.iree.kernels.attention.shape import KV_BLOCK, AttentionShape, AttentionTiling
from workers.iree.kernels.ir.arithmetic import Arithmetic
from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.memory import L2, Memory
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.operations import tanh
from workers.iree.kernels.ir.value import Value


@dataclass(frozen=True, slots=True)
class QueryRow:
    """One query head of one token."""

    token: Value
    """The token's row among the queries."""
    column: Value
    """The head's first packed word in that row."""
    last: Value
    """The last position that the token sees."""


class KvBlock:
    """The code for one query block and one KV block."""

    def __init__(
        self,
        code: Code,
        arithmetic: Arithmetic,
        shape: AttentionShape,
        tiling: AttentionTiling,
        queries: Memory,
        cache: Memory,
        window: int,
        softcap: float,
    ) -> None:
        """`cache` is seen as one dimension."""
        self._code, self._arithmetic, self._shape, self._tiling = code, arithmetic, shape, tiling
        self._queries, self._cache, self._window, self._softcap = queries, cache, window, softcap
        self._scores = code.allocate((tiling.rows, KV_BLOCK), "i32")
        """float32 scores, and then weights as packed words."""

    def attend(
        self, rows: Sequence[QueryRow], keys: Value, values: Value, low: Value, high: Value, next_keys: Value
    ) -> list[SoftmaxState]:
        """Attend from rows to positions `low` .. `high` of the block, whole steps from `low` on.

        `keys` and `values` are the elements of the cache where those of a head begin, `next_keys` that of the keys that
        are read next.
        """
        tops = self._write_scores(rows, keys, values, low, high)
        tops, masses = self._write_weights(tops, low, high)
        sums = self._weighted_sums(values, low, high, next_keys)
        return [SoftmaxState(top, mass, tuple(row)) for top, mass, row in zip(tops, masses, sums, strict=True)]

    def _write_scores(
        self, rows: Sequence[QueryRow], keys: Value, values: Value, low: Value, high: Value
    ) -> list[Value]:
        """Store float32 scores, `LOW` where a row sees nothing; return the greatest of each row by lane."""
        code, tiling = self._code, self._tiling
        count, depth = len(rows), self._shape.head_dim
        lasts = [row.last.astype("i32", signed=True).broadcast() for row in rows]

        def step(position: Value, tops: list[Value]) -> list[Value]:
            start = keys + position * depth
            ahead = values + position * LANES
            flat = self._products(rows, start, ahead)
            out, at = list(tops), position - low
            for tile in range(tiling.tiles):
                positions = position.astype("i32", signed=True).broadcast() + code.iota(tile * LANES)
                for row in range(count):
                    score = self._capped(flat[row * tiling.tiles + tile])
                    score = self._mask(positions, lasts[row]).select(score, LOW)
                    out[row] = out[row].maximum(score)
                    self._scores.store(score.bitcast("i32"), [row, at + tile * LANES])
            return out

        return code.loop(low, high, [code.floats(LOW)] * count, step, tiling.step)

    def _products(self, rows: Sequence[QueryRow], start: Value, ahead: Value) -> list[Value]:
        """Return q k^T, float32 [16] of each row and tile; prefetch the values of the same positions, from `ahead`
        on."""
        a, tiling, shape = self._arithmetic, self._tiling, self._shape
        words, unroll = a.k // a.per_word, 2
        lines = LANES // a.k

        def add(at: Value, sums: list[Value]) -> list[Value]:
            out = list(sums)
            for number in range(unroll):
                step = at + number
                inside, word = start + step * (LANES * a.k), step * words
                soon = ahead + step // lines * (LANES * shape.capacity)
                soon = soon + step % lines * (tiling.step * a.k)
                right = []
                for tile in range(tiling.tiles):
                    right.append(a.load(self._cache, [inside + tile * LANES * shape.head_dim]))
                    self._cache.prefetch([soon + tile * LANES * a.k], L2)
                for i in range(words):
                    for r, row in enumerate(rows):
                        left = a.broadcast(self._queries.load([row.token, row.column + word + i]))
                        for tile in range(tiling.tiles):
                            n = r * tiling.tiles + tile
                            out[n] = a.dot(out[n], right[tile][i], left)
            return out

        zeros = [self._code.floats(0.0)] * (len(rows) * tiling.tiles)
        return self._code.loop(0, shape.head_dim // a.k, zeros, add, unroll)

    def _capped(self, score: Value) -> Value:
        return tanh(score / self._softcap) * self._softcap if self._softcap else score

    def _mask(self, positions: Value, last: Value) -> Value:
        """Return which of 16 positions a row sees."""
        seen = positions.compare("sle", last)
        return seen & (positions + self._window).compare("sgt", last) if self._window else seen

    def _write_weights(self, tops: Sequence[Value], low: Value, high: Value) -> tuple[list[Value], list[Value]]:
        """Replace the scores by weights; return a row's greatest score in every lane, and its weights' sums by lane."""
        code, a = self._code, self._arithmetic
        tops = [top.max_lane().broadcast() for top in tops]

        def some(at: Value, masses: list[Value]) -> list[Value]:
            out = []
            for row, mass in enumerate(masses):
                score = self._scores.load_vector([row, at]).bitcast("f32")
                raised = exp(score - tops[row])
                weight = score.equals(LOW).select(0.0, raised)
                words = a.pack(weight)
                # In place: what is written lies at or before what is read.
                self._scores.store(words, [row, at // a.per_word])
                out.append(mass + self._rounded(words))
            return out

        masses = code.loop(0, high - low, [code.floats(0.0)] * len(tops), some, LANES)
        return tops, masses

    def _rounded(self, words: Value) -> Value:
        """Return the float32 values of packed words."""
        if self._arithmetic.per_word == 1:
            return words.bitcast("f32")
        return self._arithmetic.widen(words.bitcast(self._arithmetic.element))

    def _weighted_sums(self, values: Value, low: Value, high: Value, next_keys: Value) -> list[list[Value]]:
        """Return the values' sums by weight of each row, position after position; prefetch the next keys."""
        shape, tiling = self._shape, self._tiling
        count, length = tiling.rows, high - low
        sums: list[list[Value]] = [[] for _ in range(count)]
        for first in range(0, shape.head_dim // LANES, tiling.parts):
            at = values + first * LANES * shape.capacity + low * LANES
            ahead = next_keys + length * (first * LANES)
            flat = self._weighted_parts(at, length, ahead)
            for row in range(count):
                sums[row] += flat[row * tiling.parts : (row + 1) * tiling.parts]
        return sums

    def _weighted_parts(self, start: Value, length: Value, ahead: Value) -> list[Value]:
        """Return float32 [16] of each row and part, for `length` positions from `start` on."""
        a, shape, tiling = self._arithmetic, self._shape, self._tiling
        words, unroll = a.k // a.per_word, 4 // a.k

        def add(position: Value, sums: list[Value]) -> list[Value]:
            out = list(sums)
            for number in range(unroll):
                at = position + number * a.k
                inside, word = start + at * LANES, at // a.per_word
                soon = ahead + at * (LANES * tiling.parts)
                right = []
                for part in range(tiling.parts):
                    right.append(a.load(self._cache, [inside + part * LANES * shape.capacity]))
                    self._cache.prefetch([soon + part * LANES * a.k], L2)
                for i in range(words):
                    for row in range(tiling.rows):
                        left = a.broadcast(self._scores.load([row, word + i]))
                        for part in range(tiling.parts):
                            n = row * tiling.parts + part
                            out[n] = a.dot(out[n], right[part][i], left)
            return out

        zeros = [self._code.floats(0.0)] * (tiling.rows * tiling.parts)
        return self._code.loop(0, length, zeros, add, 4)
