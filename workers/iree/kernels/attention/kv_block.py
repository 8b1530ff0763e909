"""Attention of a block of query rows to one KV block: scores, their softmax, and the values' weighted sums.

Keys and values are read once for all rows of a query block, widened in registers. While one of them is read the other
is prefetched, so far ahead that it comes in time, and memory is never idle while scores become weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from workers.iree.kernels.attention.kv_elements import KvElements, PlainElements, Scales, elements_of_line
from workers.iree.kernels.attention.online_softmax import LOW, SoftmaxState, exp
from workers.iree.kernels.attention.shape import KV_BLOCK, Attention
from workers.iree.kernels.attention.unpacked_block import UnpackedBlock
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
    first: Value | None = None
    """The first one, if it does not follow from the last one."""


class KvBlock:
    """The code for one query block and one KV block."""

    def __init__(self, code: Code, kind: Attention, queries: Memory, cache: Memory) -> None:
        """`cache` is seen as one dimension."""
        self._code, self._arithmetic, self._shape, self._tiling = code, kind.arithmetic, kind.shape, kind.tiling
        self._queries, self._cache, self._window, self._softcap = queries, cache, kind.window, kind.softcap
        self._unpacked = UnpackedBlock(code, kind, cache) if UnpackedBlock.pays(kind) else None
        self._elements: KvElements = kind.elements if self._unpacked is None else PlainElements(kind.arithmetic)
        """The elements that are multiplied: levels are converted where they are loaded, or before, for several query
        blocks."""
        self._line = elements_of_line(self._elements)
        self._scales = [Scales(cache, levels) for levels in kind.shape.levels] if kind.shape.bits else None
        """Those of keys and of values."""
        self._scores = code.allocate((kind.tiling.rows, KV_BLOCK), "i32")
        """float32 scores, and then weights as packed words."""

    @property
    def unpacks(self) -> bool:
        """`begin` unpacks the positions that it is given, so that all query blocks attend to the same ones."""
        return self._unpacked is not None

    def begin(self, keys: Value, values: Value, low: Value, high: Value) -> None:
        """Prepare positions `low` .. `high` of a head's keys and values for `attend`."""
        if self._unpacked is not None:
            self._unpacked.write(keys, values, low, high)

    def attend(
        self, rows: Sequence[QueryRow], keys: Value, values: Value, low: Value, high: Value, next_keys: Value
    ) -> list[SoftmaxState]:
        """Attend from rows to positions `low` .. `high` of the block, whole steps from `low` on.

        `keys` and `values` are the elements of the cache where those of a head begin, `next_keys` that of the keys that
        are read next.
        """
        tops = self._write_scores(rows, keys, values, low, high)
        tops, masses = self._write_weights(tops, values, low, high)
        sums = self._weighted_sums(values, low, high, next_keys)
        return [SoftmaxState(top, mass, tuple(row)) for top, mass, row in zip(tops, masses, sums, strict=True)]

    def _write_scores(
        self, rows: Sequence[QueryRow], keys: Value, values: Value, low: Value, high: Value
    ) -> list[Value]:
        """Store float32 scores, `LOW` where a row sees nothing; return the greatest of each row by lane."""
        code, tiling = self._code, self._tiling
        count = len(rows)
        lasts = [row.last.astype("i32", signed=True).broadcast() for row in rows]
        firsts = [None if row.first is None else row.first.astype("i32", signed=True).broadcast() for row in rows]

        def step(position: Value, tops: list[Value]) -> list[Value]:
            if self._unpacked is None:
                start = keys + position * self._shape.lane_elements[0]
                flat = self._products(rows, self._cache, start, values + position * LANES)
            else:
                start = (position - low) * self._shape.head_dim
                flat = self._products(rows, self._unpacked.keys, start, None)
            out, at = list(tops), position - low
            for tile in range(tiling.tiles):
                positions = position.astype("i32", signed=True).broadcast() + code.iota(tile * LANES)
                scales = None if self._scales is None else self._scales[0].load(keys, position + tile * LANES)
                for row in range(count):
                    product = flat[row * tiling.tiles + tile]
                    score = self._capped(product if scales is None else product * scales)
                    score = self._mask(positions, firsts[row], lasts[row]).select(score, LOW)
                    out[row] = out[row].maximum(score)
                    self._scores.store(score.bitcast("i32"), [row, at + tile * LANES])
            return out

        return code.loop(low, high, [code.floats(LOW)] * count, step, tiling.step)

    def _products(self, rows: Sequence[QueryRow], source: Memory, start: Value, ahead: Value | None) -> list[Value]:
        """Return q k^T, float32 [16] of each row and tile; prefetch the values of the same positions, from
        `ahead` on."""
        a, tiling, shape, k = self._arithmetic, self._tiling, self._shape, self._elements.k
        words, lines, per_load = k // a.per_word, LANES * LANES // self._line, self._elements.per_load
        per_line = self._line // (LANES * k)
        unroll = max(2, per_line)

        def add(at: Value, sums: list[Value]) -> list[Value]:
            out = list(sums)
            for number in range(unroll):
                step = at + number
                inside, word = start + step * (LANES * k), step * (words * per_load)
                soon = None
                if ahead is not None and number % per_line == 0:
                    line = step // per_line
                    soon = ahead + line // lines * (LANES * shape.capacity)
                    soon = soon + line % lines * (tiling.tiles * self._line)
                right: list[list[Value]] = []
                for tile in range(tiling.tiles):
                    loaded = self._elements.load(source, [inside + tile * LANES * (shape.head_dim // per_load)])
                    right.append([part for step_parts in loaded for part in step_parts])
                    if soon is not None:
                        self._cache.prefetch([soon + tile * self._line], L2)
                for i in range(words * per_load):
                    for r, row in enumerate(rows):
                        left = a.broadcast(self._queries.load([row.token, row.column + word + i]))
                        for tile in range(tiling.tiles):
                            n = r * tiling.tiles + tile
                            out[n] = a.dot(out[n], right[tile][i], left)
            return out

        zeros = [self._code.floats(0.0)] * (len(rows) * tiling.tiles)
        return self._code.loop(0, shape.head_dim // (k * per_load), zeros, add, unroll)

    def _capped(self, score: Value) -> Value:
        return tanh(score / self._softcap) * self._softcap if self._softcap else score

    def _mask(self, positions: Value, first: Value | None, last: Value) -> Value:
        """Return which of 16 positions a row sees."""
        seen = positions.compare("sle", last)
        if first is not None:
            return seen & positions.compare("sge", first)
        return seen & (positions + self._window).compare("sgt", last) if self._window else seen

    def _write_weights(
        self, tops: Sequence[Value], values: Value, low: Value, high: Value
    ) -> tuple[list[Value], list[Value]]:
        """Replace the scores by weights, times the scales of quantized values; return a row's greatest score in every
        lane, and its weights' sums by lane."""
        code, a = self._code, self._arithmetic
        tops = [top.max_lane().broadcast() for top in tops]

        def some(at: Value, masses: list[Value]) -> list[Value]:
            out = []
            scales = None if self._scales is None else self._scales[1].load(values, low + at)
            for row, mass in enumerate(masses):
                score = self._scores.load_vector([row, at]).bitcast("f32")
                raised = exp(score - tops[row])
                hidden = score.equals(LOW)
                weight = hidden.select(0.0, raised)
                words = a.pack(weight if scales is None else hidden.select(0.0, raised * scales))
                # In place: what is written lies at or before what is read.
                self._scores.store(words, [row, at // a.per_word])
                out.append(mass + (weight if scales is not None else self._rounded(words)))
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
        for first in range(0, shape.value_dim // LANES, tiling.parts):
            offset = first // self._elements.per_load * LANES
            if self._unpacked is None:
                at = values + offset * shape.capacity + low * LANES
                flat = self._weighted_parts(self._cache, shape.capacity, at, length, next_keys + length * offset)
            else:
                start = self._code.index(offset * KV_BLOCK)
                flat = self._weighted_parts(self._unpacked.values, KV_BLOCK, start, length, None)
            for row in range(count):
                sums[row] += flat[row * tiling.parts : (row + 1) * tiling.parts]
        return sums

    def _weighted_parts(
        self, source: Memory, capacity: int, start: Value, length: Value, ahead: Value | None
    ) -> list[Value]:
        """Return float32 [16] of each row and part, for `length` positions from `start` on."""
        a, tiling, k = self._arithmetic, self._tiling, self._elements.k
        words, unroll, loads = k // a.per_word, 4 // k, tiling.parts // self._elements.per_load

        def add(position: Value, sums: list[Value]) -> list[Value]:
            out = list(sums)
            for number in range(unroll):
                at = position + number * k
                inside, word = start + at * LANES, at // a.per_word
                soon = None
                if ahead is not None and number * LANES * k % self._line == 0:
                    soon = ahead + at * (LANES * loads)
                right: list[list[Value]] = []
                for load in range(loads):
                    right += self._elements.load(source, [inside + load * LANES * capacity])
                    if soon is not None:
                        self._cache.prefetch([soon + load * self._line], L2)
                for i in range(words):
                    for row in range(tiling.rows):
                        left = a.broadcast(self._scores.load([row, word + i]))
                        for part in range(tiling.parts):
                            n = row * tiling.parts + part
                            out[n] = a.dot(out[n], right[part][i], left)
            return out

        zeros = [self._code.floats(0.0)] * (tiling.rows * tiling.parts)
        return self._code.loop(0, length, zeros, add, 4)
