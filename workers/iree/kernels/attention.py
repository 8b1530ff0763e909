"""Attention over the packed cache: one pass with a running maximum, in blocks that begin at the same positions for all.

The running maximum is that of FlashAttention (https://arxiv.org/abs/2205.14135). A block that a row may not see changes
nothing in it: the factor is exp(0) and the weights are zero. So a row's result depends on its own positions alone,
whatever rows are computed beside it.
"""

from workers.iree.kernels.arithmetic import Arithmetic
from workers.iree.kernels.code import FLOATS, LANES, Code, Dispatch, Value
from workers.iree.kernels.linear import stride
from workers.iree.kernels.place import Heads

TILES = 4
"""Vectors of positions in a block."""
POSITIONS = TILES * LANES
LOW = "-1.0e30"
"""Below every score, and finite: the difference of two is zero and not NaN."""


def attention(name: str, h: Heads, arithmetic: Arithmetic, *, window: int = 0, cap: float = 0.0) -> str:
    """softmax(q k^T) v: words [batch * tokens, queries * head_dim / word] of scaled queries, slots int32 [batch], rows
    int32 [batch, tokens], cache -> words [batch * tokens, stride] of width queries * head_dim.

    A row sees the cache's rows up to its own, of which only the last `window` where that is not 0. Scores s become
    cap * tanh(s / cap) where `cap` is not 0. Weights are summed as they were rounded for the weighted sum.
    """
    rows = h.tokens * h.group
    block = min(rows, max(1, arithmetic.sums * LANES // h.head_dim))
    d = Dispatch(name, (-(-rows // block), h.heads, h.batch))
    code = d.code
    q = d.take((h.batch * h.tokens, h.queries * h.head_dim // arithmetic.word), "i32")
    slots, at = d.take((h.batch,), "i32"), d.take((h.batch, h.tokens), "i32")
    cache = d.argument(h.cache, arithmetic.element)
    width = h.queries * h.head_dim
    out = d.give((h.batch * h.tokens, stride(width, arithmetic)), "i32")

    part, head, sequence = (d.workgroup(axis) for axis in range(3))
    slot = code.extract_index(slots, [sequence])
    layer, size = d.number(h.layer), h.capacity * h.head_dim
    keys, values = (d.load(cache, [layer, str(i), slot, head, "0"], (1, 1, 1, 1, size), (size,)) for i in (0, 1))
    body = _Rows(code, arithmetic, h, block, window, cap)
    first = code.mul(part, block)
    body.find(first, rows, head, sequence, at)
    body.run(q, keys, values)
    body.store(d, out)
    return d.function()


class _Rows:
    """The rows of one workgroup; a block that is not full computes its last row again in the place of those missing."""

    def __init__(self, code: Code, arithmetic: Arithmetic, h: Heads, count: int, window: int, cap: float) -> None:
        self._code, self._arithmetic, self._h = code, arithmetic, h
        self._count, self._window, self._cap = count, window, cap
        self._tokens: list[str] = []
        self._columns: list[str] = []
        self._last: list[str] = []
        """Of each row, the last position that it sees."""
        self._means: list[list[str]] = []

    def find(self, first: str, rows: int, head: str, sequence: str, at: Value) -> None:
        """Where the rows from `first` on stand in the queries, and what they see."""
        code, h = self._code, self._h
        words = h.head_dim // self._arithmetic.word
        for i in range(self._count):
            row = code.least(code.add(first, i), code.index(rows - 1))
            token = code.div(row, h.group)
            query = code.add(code.mul(head, h.group), code.rem(row, h.group)) if h.group > 1 else head
            self._tokens.append(code.add(code.mul(sequence, h.tokens), token))
            self._columns.append(code.mul(query, words))
            self._last.append(self._sees(code.extract_index(at, [sequence, token])))

    def _sees(self, row: str) -> str:
        """The last position that a row sees: one that is nobody's need not see more than one."""
        code = self._code
        real = code.let(f"arith.cmpi ult, {row}, {code.index(self._h.attended)} : index")
        return code.let(f"arith.select {real}, {row}, {code.index(0)} : index")

    def run(self, q: Value, keys: Value, values: Value) -> None:
        code, h, count = self._code, self._h, self._count
        parts = h.head_dim // LANES
        end = self._last[0]
        for last in self._last[1:]:
            end = code.let(f"arith.maxui {end}, {last} : index")
        zero, low = code.floats(0.0), code.floats(LOW)
        # Of each row: running maximum in every lane, the weights' sums by lane, and the weighted sums.
        carried = [(low, FLOATS)] * count + [(zero, FLOATS)] * (count * (1 + parts))
        begin = self._begin()

        def turn(position: str, state: list[str]) -> list[str]:
            scores = self._scores(q, keys, position)
            tops, masses = state[:count], state[count : 2 * count]
            sums = [state[2 * count + row * parts : 2 * count + (row + 1) * parts] for row in range(count)]
            weights = code.empty((count, POSITIONS // self._arithmetic.word), "i32")
            for row in range(count):
                tops[row], masses[row], sums[row], words = self._soften(
                    row, scores[row], position, tops[row], masses[row], sums[row]
                )
                for tile, vector in enumerate(words):
                    size = LANES // self._arithmetic.word
                    weights = code.write(vector, size, weights, [code.index(row), code.index(tile * size)])
            sums = self._mix(values, position, weights, sums)
            return [*tops, *masses, *(part for row in sums for part in row)]

        state = code.loop(begin, code.add(end, 1), POSITIONS, carried, turn)
        for row in range(count):
            mass = code.spread(code.sum_lanes(state[count + row]))
            parts_of = state[2 * count + row * parts : 2 * count + (row + 1) * parts]
            self._means.append([code.let(f"arith.divf {part}, {mass} : {FLOATS}") for part in parts_of])

    def store(self, d: Dispatch, out: Value) -> None:
        code, words = self._code, LANES // self._arithmetic.word
        width = self._h.head_dim // self._arithmetic.word
        for token, column, mean in zip(self._tokens, self._columns, self._means, strict=True):
            part = code.empty((1, width), "i32")
            for i, vector in enumerate(mean):
                part = code.write(
                    self._arithmetic.words(code, vector), words, part, [code.index(0), code.index(i * words)]
                )
            d.store(part, out, [token, column])

    def _begin(self) -> str:
        """The start of the first block that any row sees."""
        code = self._code
        if not self._window:
            return code.index(0)
        first = self._last[0]
        for last in self._last[1:]:
            first = code.least(first, last)
        beyond = code.let(f"arith.maxui {first}, {code.index(self._window - 1)} : index")
        start = code.let(f"arith.subi {beyond}, {code.index(self._window - 1)} : index")
        return code.mul(code.div(start, POSITIONS), POSITIONS)

    def _scores(self, q: Value, keys: Value, position: str) -> list[list[str]]:
        """float32 [16] of each row and vector of positions of a block."""
        code, a, depth = self._code, self._arithmetic, self._h.head_dim
        start, lefts = code.mul(position, depth), a.k // a.word

        def turn(step: str, sums: list[str]) -> list[str]:
            out = list(sums)
            inside, word = code.add(start, code.mul(step, LANES * a.k)), code.mul(step, lefts)
            right = [a.load(code, keys, [code.add(inside, tile * LANES * depth)]) for tile in range(TILES)]
            for part in range(lefts):
                for row, (token, column) in enumerate(zip(self._tokens, self._columns, strict=True)):
                    left = a.spread(code, code.extract(q, [token, code.add(code.add(column, word), part)]))
                    for tile in range(TILES):
                        i = row * TILES + tile
                        out[i] = a.dot(code, out[i], right[tile][part], left)
            return out

        carried = [(code.floats(0.0), FLOATS)] * (self._count * TILES)
        flat = code.loop(code.index(0), code.index(depth // a.k), 1, carried, turn)
        scores = [flat[row * TILES : (row + 1) * TILES] for row in range(self._count)]
        return [[self._capped(score) for score in row] for row in scores] if self._cap else scores

    def _capped(self, score: str) -> str:
        code = self._code
        small = code.let(f"arith.divf {score}, {code.floats(self._cap)} : {FLOATS}")
        bent = code.let(f"math.tanh {small} : {FLOATS}")
        return code.let(f"arith.mulf {bent}, {code.floats(self._cap)} : {FLOATS}")

    def _soften(
        self, row: int, scores: list[str], position: str, top: str, mass: str, sums: list[str]
    ) -> tuple[str, str, list[str], list[str]]:
        """A block's weights, and the running state of a row made ready for them."""
        code, a = self._code, self._arithmetic
        seen = [self._seen(row, position, tile) for tile in range(TILES)]
        low = code.floats(LOW)
        masked = [
            code.let(f"arith.select {mask}, {score}, {low} : vector<{LANES}xi1>, {FLOATS}")
            for mask, score in zip(seen, scores, strict=True)
        ]
        highest = masked[0]
        for score in masked[1:]:
            highest = code.greater(highest, score)
        above = code.greater(top, code.spread(code.greatest_lane(highest)))
        factor = code.let(f"math.exp {code.let(f'arith.subf {top}, {above} : {FLOATS}')} : {FLOATS}")
        mass = code.let(f"arith.mulf {mass}, {factor} : {FLOATS}")
        sums = [code.let(f"arith.mulf {part}, {factor} : {FLOATS}") for part in sums]
        weights = []
        for mask, score in zip(seen, scores, strict=True):
            power = code.let(f"math.exp {code.let(f'arith.subf {score}, {above} : {FLOATS}')} : {FLOATS}")
            weight = code.let(f"arith.select {mask}, {power}, {code.floats(0.0)} : vector<{LANES}xi1>, {FLOATS}")
            words = a.words(code, weight)
            weights.append(words)
            mass = code.let(f"arith.addf {mass}, {self._rounded(words)} : {FLOATS}")
        return above, mass, sums, weights

    def _rounded(self, words: str) -> str:
        """The float32 values of words."""
        code, word = self._code, self._arithmetic.word
        kind = "f32" if word == 1 else self._arithmetic.element
        flat = code.let(f"vector.bitcast {words} : vector<{LANES // word}xi32> to vector<{LANES}x{kind}>")
        return flat if word == 1 else self._arithmetic.widen(code, flat)

    def _seen(self, row: int, position: str, tile: int) -> str:
        """Which of 16 positions a row sees."""
        code = self._code
        lanes = ", ".join(map(str, range(tile * LANES, (tile + 1) * LANES)))
        kind = f"vector<{LANES}xi32>"
        start = code.spread(code.let(f"arith.index_cast {position} : index to i32"), "i32")
        at = code.let(f"arith.addi {start}, {code.constant(f'dense<[{lanes}]> : {kind}')} : {kind}")
        last = code.spread(code.let(f"arith.index_cast {self._last[row]} : index to i32"), "i32")
        seen = code.let(f"arith.cmpi sle, {at}, {last} : {kind}")
        if not self._window:
            return seen
        reach = code.let(f"arith.addi {at}, {code.constant(f'dense<{self._window}> : {kind}')} : {kind}")
        near = code.let(f"arith.cmpi sgt, {reach}, {last} : {kind}")
        return code.let(f"arith.andi {seen}, {near} : vector<{LANES}xi1>")

    def _mix(self, values: Value, position: str, weights: Value, sums: list[list[str]]) -> list[list[str]]:
        """Add the block's values, by weight, position after position."""
        code, a, h = self._code, self._arithmetic, self._h
        parts = h.head_dim // LANES
        start, lefts = code.mul(position, LANES), a.k // a.word

        def turn(step: str, flat: list[str]) -> list[str]:
            out = list(flat)
            inside, word = code.add(start, code.mul(step, LANES * a.k)), code.mul(step, lefts)
            left = [
                [a.spread(code, code.extract(weights, [code.index(row), code.add(word, i)])) for i in range(lefts)]
                for row in range(self._count)
            ]
            for part in range(parts):
                right = a.load(code, values, [code.add(inside, part * LANES * h.capacity)])
                for row in range(self._count):
                    at = row * parts + part
                    for i in range(lefts):
                        out[at] = a.dot(code, out[at], right[i], left[row][i])
            return out

        carried = [(part, FLOATS) for row in sums for part in row]
        flat = code.loop(code.index(0), code.index(POSITIONS // a.k), 1, carried, turn)
        return [flat[row * parts : (row + 1) * parts] for row in range(self._count)]
