"""Attention of a few rows to one span of the packed cache: scores, their softmax, and the values' weighted sum.

Keys and values are read once for all rows of a block, widened in registers. While one of them is read the other is on
its way: what is fetched is so far ahead that it comes in time, and memory is never idle while scores become weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from workers.iree.kernels.attention.online_softmax import INTS, LOW, Softened, power
from workers.iree.kernels.attention.shape import Heads
from workers.iree.kernels.ir.arithmetic import Arithmetic
from workers.iree.kernels.ir.builder import FLOATS, LANES, Code, Value

SPAN = 128
"""Positions whose weights are made at once, relative to the greatest score among them. Spans begin at its multiples."""
SECOND = 2
"""The cache that is fetched to, which holds both halves of a span. To the first it takes 5 % longer."""
MASKS = f"vector<{LANES}xi1>"


@dataclass(frozen=True, slots=True)
class Row:
    """One query head of one token."""

    token: str
    """Its row among the queries,"""
    column: str
    """and its first word there."""
    last: str
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
        """As few blocks as there are registers for, all of one size."""
        rows = h.tokens * h.group
        blocks = -(-rows // (arithmetic.sums // 2))
        block = -(-rows // blocks)
        tiles = next(n for n in (4, 2, 1) if n * block <= arithmetic.sums)
        parts = next(n for n in (4, 2, 1) if n * block <= arithmetic.sums and h.head_dim // LANES % n == 0)
        return cls(block, tiles, parts)

    @property
    def step(self) -> int:
        """Positions whose scores are summed at once."""
        return self.tiles * LANES


class Block:
    """The code for some rows and one span."""

    def __init__(
        self,
        code: Code,
        arithmetic: Arithmetic,
        h: Heads,
        tiling: Tiling,
        q: Value,
        cache: Value,
        window: int,
        cap: float,
    ) -> None:
        """`cache` is seen as one dimension."""
        self._code, self._arithmetic, self._h, self._tiling = code, arithmetic, h, tiling
        self._q, self._cache, self._window, self._cap = q, cache, window, cap
        self._room = code.room((tiling.rows, SPAN), "i32")
        """Scores, and then weights as words."""

    def attend(self, rows: Sequence[Row], keys: str, values: str, low: str, high: str, soon: str) -> list[Softened]:
        """Rows x positions `low` .. `high` of a span, whole steps from `low` on. `keys` and `values` are elements of
        the cache where those of a head begin, `soon` is where the keys begin that are read next."""
        tops = self._scores(rows, keys, values, low, high)
        tops, masses = self._soften(tops, low, high)
        sums = self._mix(values, low, high, soon)
        return [Softened(top, mass, tuple(row)) for top, mass, row in zip(tops, masses, sums, strict=True)]

    def _scores(self, rows: Sequence[Row], keys: str, values: str, low: str, high: str) -> list[str]:
        """Leave float32 scores in the room, `LOW` where a row sees nothing; the greatest of each row by lane."""
        code, tiling = self._code, self._tiling
        count, depth = len(rows), self._h.head_dim
        lasts = [code.spread(code.number(row.last), "i32") for row in rows]

        def turn(position: str, tops: list[str]) -> list[str]:
            start = code.add(keys, code.mul(position, depth))
            ahead = code.add(values, code.mul(position, LANES))
            flat = self._products(rows, start, ahead)
            out, at = list(tops), code.minus(position, low)
            for tile in range(tiling.tiles):
                places = self._places(position, tile)
                for row in range(count):
                    score = self._capped(flat[row * tiling.tiles + tile])
                    seen = self._seen(places, lasts[row])
                    score = code.let(f"arith.select {seen}, {score}, {code.floats(LOW)} : {MASKS}, {FLOATS}")
                    out[row] = code.greater(out[row], score)
                    bits = code.let(f"vector.bitcast {score} : {FLOATS} to {INTS}")
                    code.put(bits, LANES, self._room, [code.index(row), code.add(at, tile * LANES)])
            return out

        return code.loop(low, high, tiling.step, [(code.floats(LOW), FLOATS)] * count, turn)

    def _products(self, rows: Sequence[Row], start: str, ahead: str) -> list[str]:
        """float32 [16] of each row and tile. Meanwhile values of the same positions are fetched, from `ahead` on."""
        code, a, tiling, h = self._code, self._arithmetic, self._tiling, self._h
        lefts, unroll = a.k // a.word, 2
        lines = LANES // a.k

        def turn(at: str, sums: list[str]) -> list[str]:
            out = list(sums)
            for number in range(unroll):
                step = code.add(at, number)
                inside, word = code.add(start, code.mul(step, LANES * a.k)), code.mul(step, lefts)
                soon = code.add(ahead, code.mul(code.div(step, lines), LANES * h.capacity))
                soon = code.add(soon, code.mul(code.rem(step, lines), tiling.step * a.k))
                right = []
                for tile in range(tiling.tiles):
                    right.append(a.load(code, self._cache, [code.add(inside, tile * LANES * h.head_dim)]))
                    code.prefetch(self._cache, [code.add(soon, tile * LANES * a.k)], SECOND)
                for i in range(lefts):
                    for r, row in enumerate(rows):
                        column = code.add(code.add(row.column, word), i)
                        left = a.spread(code, code.extract(self._q, [row.token, column]))
                        for tile in range(tiling.tiles):
                            n = r * tiling.tiles + tile
                            out[n] = a.dot(code, out[n], right[tile][i], left)
            return out

        carried = [(code.floats(0.0), FLOATS)] * (len(rows) * tiling.tiles)
        return code.loop(code.index(0), code.index(h.head_dim // a.k), unroll, carried, turn)

    def _capped(self, score: str) -> str:
        if not self._cap:
            return score
        code = self._code
        small = code.let(f"arith.divf {score}, {code.floats(self._cap)} : {FLOATS}")
        bent = code.let(f"math.tanh {small} : {FLOATS}")
        return code.let(f"arith.mulf {bent}, {code.floats(self._cap)} : {FLOATS}")

    def _places(self, position: str, tile: int) -> str:
        """int32 [16]: the positions of a tile."""
        code = self._code
        lanes = ", ".join(map(str, range(tile * LANES, (tile + 1) * LANES)))
        start = code.spread(code.number(position), "i32")
        return code.let(f"arith.addi {start}, {code.constant(f'dense<[{lanes}]> : {INTS}')} : {INTS}")

    def _seen(self, places: str, last: str) -> str:
        """Which of 16 positions a row sees."""
        code = self._code
        seen = code.let(f"arith.cmpi sle, {places}, {last} : {INTS}")
        if not self._window:
            return seen
        reach = code.let(f"arith.addi {places}, {code.constant(f'dense<{self._window}> : {INTS}')} : {INTS}")
        near = code.let(f"arith.cmpi sgt, {reach}, {last} : {INTS}")
        return code.let(f"arith.andi {seen}, {near} : {MASKS}")

    def _soften(self, tops: list[str], low: str, high: str) -> tuple[list[str], list[str]]:
        """Scores in the room become weights; a row's greatest score in every lane, and its weights' sums by lane."""
        code, a = self._code, self._arithmetic
        tops = [code.spread(code.greatest_lane(top)) for top in tops]

        def turn(at: str, masses: list[str]) -> list[str]:
            out = []
            for row, mass in enumerate(masses):
                bits = code.read(self._room, [code.index(row), at])
                score = code.let(f"vector.bitcast {bits} : {INTS} to {FLOATS}")
                raised = power(code, code.let(f"arith.subf {score}, {tops[row]} : {FLOATS}"))
                unseen = code.let(f"arith.cmpf oeq, {score}, {code.floats(LOW)} : {FLOATS}")
                weight = code.let(f"arith.select {unseen}, {code.floats(0.0)}, {raised} : {MASKS}, {FLOATS}")
                words = a.words(code, weight)
                # In place: what is written lies at or before what is read.
                code.put(words, LANES // a.word, self._room, [code.index(row), code.div(at, a.word)])
                out.append(code.let(f"arith.addf {mass}, {self._rounded(words)} : {FLOATS}"))
            return out

        zero = code.floats(0.0)
        masses = code.loop(code.index(0), code.minus(high, low), LANES, [(zero, FLOATS)] * len(tops), turn)
        return tops, masses

    def _rounded(self, words: str) -> str:
        """The float32 values of words."""
        code, word = self._code, self._arithmetic.word
        kind = "f32" if word == 1 else self._arithmetic.element
        flat = code.let(f"vector.bitcast {words} : vector<{LANES // word}xi32> to vector<{LANES}x{kind}>")
        return flat if word == 1 else self._arithmetic.widen(code, flat)

    def _mix(self, values: str, low: str, high: str, soon: str) -> list[list[str]]:
        """The values' sums by weight of each row, position after position. Meanwhile keys are fetched from `soon`."""
        code, h, tiling = self._code, self._h, self._tiling
        count, length = tiling.rows, code.minus(high, low)
        sums: list[list[str]] = [[] for _ in range(count)]
        for first in range(0, h.head_dim // LANES, tiling.parts):
            at = code.add(code.add(values, first * LANES * h.capacity), code.mul(low, LANES))
            ahead = code.add(soon, code.mul(length, first * LANES))
            flat = self._mixed(at, length, ahead)
            for row in range(count):
                sums[row] += flat[row * tiling.parts : (row + 1) * tiling.parts]
        return sums

    def _mixed(self, start: str, length: str, ahead: str) -> list[str]:
        """float32 [16] of each row and part, for `length` positions from `start` on."""
        code, a, h, tiling = self._code, self._arithmetic, self._h, self._tiling
        lefts, unroll = a.k // a.word, 4 // a.k

        def turn(position: str, sums: list[str]) -> list[str]:
            out = list(sums)
            for number in range(unroll):
                at = code.add(position, number * a.k)
                inside, word = code.add(start, code.mul(at, LANES)), code.div(at, a.word)
                soon = code.add(ahead, code.mul(at, LANES * tiling.parts))
                right = []
                for part in range(tiling.parts):
                    right.append(a.load(code, self._cache, [code.add(inside, part * LANES * h.capacity)]))
                    code.prefetch(self._cache, [code.add(soon, part * LANES * a.k)], SECOND)
                for i in range(lefts):
                    for row in range(tiling.rows):
                        left = a.spread(code, code.extract(self._room, [code.index(row), code.add(word, i)]))
                        for part in range(tiling.parts):
                            n = row * tiling.parts + part
                            out[n] = a.dot(code, out[n], right[part][i], left)
            return out

        carried = [(code.floats(0.0), FLOATS)] * (tiling.rows * tiling.parts)
        return code.loop(code.index(0), length, 4, carried, turn)
