"""Attention of a few rows to one block of the packed KV cache: scores, their softmax, and the values' weighted sum.

Keys and values are read once for all rows of a block of queries, widened in registers. While one of them is read the
other is on its way: what is fetched is so far ahead that it comes in time, and memory is never idle while scores become
weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from workers.iree.kernels.attention.online_softmax import LOW, Softened, power
from workers.iree.kernels.attention.shape import Heads
from workers.iree.kernels.ir.arithmetic import Arithmetic
from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.memory import L2, Memory
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.operations import tanh
from workers.iree.kernels.ir.value import Value

SPAN = 128
"""Positions whose weights are made at once, relative to the greatest score among them. KV blocks begin at its
multiples. Both halves of a block fit L2, to which they are fetched; to L1 it takes 5 % longer."""


@dataclass(frozen=True, slots=True)
class Row:
    """One query head of one token."""

    token: Value
    """Its row among the queries."""
    column: Value
    """Its first packed word in that row."""
    last: Value
    """The last position that it sees."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """What is summed side by side."""

    rows: int
    """Rows of a block; they share what is read."""
    tiles: int
    """Vectors of positions whose scores are summed at once."""
    parts: int
    """Vectors of a value's lanes that are summed at once."""

    @classmethod
    def of(cls, h: Heads, arithmetic: Arithmetic) -> "Tiling":
        """Return as few blocks as there are registers for, all of one size."""
        rows, most = h.tokens * h.group, arithmetic.accumulators
        blocks = -(-rows // (most // 2))
        block = -(-rows // blocks)
        tiles = next(n for n in (4, 2, 1) if n * block <= most)
        parts = next(n for n in (4, 2, 1) if n * block <= most and h.head_dim // LANES % n == 0)
        return cls(block, tiles, parts)

    @property
    def step(self) -> int:
        """Positions whose scores are summed at once."""
        return self.tiles * LANES


class Block:
    """The code for some rows and one KV block."""

    def __init__(
        self,
        code: Code,
        arithmetic: Arithmetic,
        h: Heads,
        tiling: Tiling,
        q: Memory,
        cache: Memory,
        window: int,
        cap: float,
    ) -> None:
        """`cache` is seen as one dimension."""
        self._code, self._arithmetic, self._h, self._tiling = code, arithmetic, h, tiling
        self._q, self._cache, self._window, self._cap = q, cache, window, cap
        self._scores_and_weights = code.allocate((tiling.rows, SPAN), "i32")
        """float32 scores, and then weights as packed words."""

    def attend(
        self, rows: Sequence[Row], keys: Value, values: Value, low: Value, high: Value, soon: Value
    ) -> list[Softened]:
        """Attend from rows to positions `low` .. `high` of a block, whole steps from `low` on. `keys` and `values` are
        elements of the cache where those of a head begin, `soon` is where the keys begin that are read next."""
        tops = self._scores(rows, keys, values, low, high)
        tops, masses = self._softmax(tops, low, high)
        sums = self._weighted_sums(values, low, high, soon)
        return [Softened(top, mass, tuple(row)) for top, mass, row in zip(tops, masses, sums, strict=True)]

    def _scores(self, rows: Sequence[Row], keys: Value, values: Value, low: Value, high: Value) -> list[Value]:
        """Store float32 scores, `LOW` where a row sees nothing; return the greatest of each row by lane."""
        code, tiling = self._code, self._tiling
        count, depth = len(rows), self._h.head_dim
        lasts = [row.last.astype("i32", signed=True).broadcast() for row in rows]

        def step(position: Value, tops: list[Value]) -> list[Value]:
            start = keys + position * depth
            ahead = values + position * LANES
            flat = self._products(rows, start, ahead)
            out, at = list(tops), position - low
            for tile in range(tiling.tiles):
                places = position.astype("i32", signed=True).broadcast() + code.iota(tile * LANES)
                for row in range(count):
                    score = self._capped(flat[row * tiling.tiles + tile])
                    score = self._seen(places, lasts[row]).select(score, LOW)
                    out[row] = out[row].maximum(score)
                    self._scores_and_weights.store(score.bitcast("i32"), [row, at + tile * LANES])
            return out

        return code.loop(low, high, [code.floats(LOW)] * count, step, tiling.step)

    def _products(self, rows: Sequence[Row], start: Value, ahead: Value) -> list[Value]:
        """Return float32 [16] of each row and tile. Meanwhile values of the same positions are fetched, from `ahead`
        on."""
        a, tiling, h = self._arithmetic, self._tiling, self._h
        words, unroll = a.k // a.per_word, 2
        lines = LANES // a.k

        def add(at: Value, sums: list[Value]) -> list[Value]:
            out = list(sums)
            for number in range(unroll):
                step = at + number
                inside, word = start + step * (LANES * a.k), step * words
                soon = ahead + step // lines * (LANES * h.capacity)
                soon = soon + step % lines * (tiling.step * a.k)
                right = []
                for tile in range(tiling.tiles):
                    right.append(a.load(self._cache, [inside + tile * LANES * h.head_dim]))
                    self._cache.prefetch([soon + tile * LANES * a.k], L2)
                for i in range(words):
                    for r, row in enumerate(rows):
                        left = a.broadcast(self._q.load([row.token, row.column + word + i]))
                        for tile in range(tiling.tiles):
                            n = r * tiling.tiles + tile
                            out[n] = a.dot(out[n], right[tile][i], left)
            return out

        start_sums = [self._code.floats(0.0)] * (len(rows) * tiling.tiles)
        return self._code.loop(0, h.head_dim // a.k, start_sums, add, unroll)

    def _capped(self, score: Value) -> Value:
        return tanh(score / self._cap) * self._cap if self._cap else score

    def _seen(self, places: Value, last: Value) -> Value:
        """Return which of 16 positions a row sees."""
        seen = places.compare("sle", last)
        return seen & (places + self._window).compare("sgt", last) if self._window else seen

    def _softmax(self, tops: Sequence[Value], low: Value, high: Value) -> tuple[list[Value], list[Value]]:
        """Replace the scores by weights; return a row's greatest score in every lane, and its weights' sums by lane."""
        code, a, memory = self._code, self._arithmetic, self._scores_and_weights
        tops = [top.max_lane().broadcast() for top in tops]

        def some(at: Value, masses: list[Value]) -> list[Value]:
            out = []
            for row, mass in enumerate(masses):
                score = memory.load_vector([row, at]).bitcast("f32")
                raised = power(score - tops[row])
                weight = score.equals(LOW).select(0.0, raised)
                words = a.pack(weight)
                # In place: what is written lies at or before what is read.
                memory.store(words, [row, at // a.per_word])
                out.append(mass + self._rounded(words))
            return out

        masses = code.loop(0, high - low, [code.floats(0.0)] * len(tops), some, LANES)
        return tops, masses

    def _rounded(self, words: Value) -> Value:
        """Return the float32 values of packed words."""
        if self._arithmetic.per_word == 1:
            return words.bitcast("f32")
        return self._arithmetic.widen(words.bitcast(self._arithmetic.element))

    def _weighted_sums(self, values: Value, low: Value, high: Value, soon: Value) -> list[list[Value]]:
        """Return the values' sums by weight of each row, position after position. Meanwhile keys are fetched from
        `soon` on."""
        h, tiling = self._h, self._tiling
        count, length = tiling.rows, high - low
        sums: list[list[Value]] = [[] for _ in range(count)]
        for first in range(0, h.head_dim // LANES, tiling.parts):
            at = values + first * LANES * h.capacity + low * LANES
            ahead = soon + length * (first * LANES)
            flat = self._weighted_parts(at, length, ahead)
            for row in range(count):
                sums[row] += flat[row * tiling.parts : (row + 1) * tiling.parts]
        return sums

    def _weighted_parts(self, start: Value, length: Value, ahead: Value) -> list[Value]:
        """Return float32 [16] of each row and part, for `length` positions from `start` on."""
        a, h, tiling = self._arithmetic, self._h, self._tiling
        words, unroll = a.k // a.per_word, 4 // a.k

        def add(position: Value, sums: list[Value]) -> list[Value]:
            out = list(sums)
            for number in range(unroll):
                at = position + number * a.k
                inside, word = start + at * LANES, at // a.per_word
                soon = ahead + at * (LANES * tiling.parts)
                right = []
                for part in range(tiling.parts):
                    right.append(a.load(self._cache, [inside + part * LANES * h.capacity]))
                    self._cache.prefetch([soon + part * LANES * a.k], L2)
                for i in range(words):
                    for row in range(tiling.rows):
                        left = a.broadcast(self._scores_and_weights.load([row, word + i]))
                        for part in range(tiling.parts):
                            n = row * tiling.parts + part
                            out[n] = a.dot(out[n], right[part][i], left)
            return out

        start_sums = [self._code.floats(0.0)] * (tiling.rows * tiling.parts)
        return self._code.loop(0, length, start_sums, add, 4)
