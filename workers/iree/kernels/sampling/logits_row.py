"""A row of logits in the body of a workgroup: its operands, what is asked of it, and sums over its weights."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from workers.iree.kernels.ir.array_namespace import Lanes, Word
from workers.iree.kernels.ir.builder import LANES, Code
from workers.iree.kernels.ir.executable import ROWS, Operand
from workers.sampling.fixed_point import distances, steps_of, weights_of
from workers.sampling.noise import noise
from workers.sampling.top_candidates import CELLS
from workers.sampling.vocabulary_blocks import BLOCK

PARAMETERS = 7
"""Numbers of a row, in the order of `workers.sampling.sample.SamplingArrays`: 32 bits each."""
PER_BLOCK = BLOCK // LANES
NEAREST = CELLS + LANES
"""Where the steps of all cells begin, behind those cells that are looked at."""
HALF = 128
"""Vectors of weights whose sums stay below 2**32 in each lane."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of one vocabulary, in cells of `LANES` tokens and blocks of `BLOCK`; and the operands that have them."""

    vocab: int

    @property
    def cells(self) -> int:
        return -(-self.vocab // LANES)

    @property
    def blocks(self) -> int:
        return -(-self.vocab // BLOCK)

    @property
    def top_vectors(self) -> int:
        """Vectors of the highest logits of cells, filled up with -inf."""
        return -(-self.cells // LANES)

    @property
    def sum_vectors(self) -> int:
        """Vectors of the blocks' sums, filled up with 0."""
        return -(-self.blocks // LANES)

    @property
    def logits(self) -> Operand:
        return Operand("logits", (ROWS, self.vocab), "f32")

    @property
    def parameters(self) -> Operand:
        return Operand("parameters", (ROWS, PARAMETERS), "i32")

    @property
    def tops(self) -> Operand:
        """The highest logit of each cell."""
        return Operand("tops", (ROWS, self.top_vectors * LANES), "f32")

    @property
    def sums(self) -> Operand:
        """The weight of each block, for rows that need the weight of all tokens."""
        return Operand("sums", (ROWS, self.sum_vectors * LANES), "i32")

    @property
    def tokens(self) -> Operand:
        return Operand("tokens", (ROWS,), "i32")

    @property
    def noted(self) -> Operand:
        """The cells that are looked at, and from `NEAREST` on the steps of each cell's likeliest token."""
        return Operand("noted", (ROWS, NEAREST + self.top_vectors * LANES), "i32")

    @property
    def lanes(self) -> Operand:
        """A number for each token, or two for each of those in the cells that are looked at."""
        return Operand("lanes", (ROWS, max(self.cells, 2 * CELLS) * LANES), "i32")


class Row:
    """Writes the code of one row, which is `%row` in it."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.code = Code()
        self.xp = Lanes(self.code)

    def index(self, value: int) -> str:
        return self.code.index(value)

    def number(self, value: int, element: str = "i32") -> Word:
        return self.xp.array(value, element)

    def place(self, index: str) -> Word:
        """An index as a number."""
        return Word(self.code, self.code.let(f"arith.index_castui {index} : index to i32"), "i32")

    def load(self, operand: Operand, at: str, lanes: int = LANES) -> Word:
        """A vector of an operand, or with no lanes one number."""
        where = f"%{operand.name}[%row, {at}] : {operand.inside}"
        if not lanes:
            return Word(self.code, self.code.let(f"memref.load {where}"), operand.element)
        name = self.code.let(f"vector.load {where}, vector<{lanes}x{operand.element}>")
        return Word(self.code, name, operand.element, lanes)

    def vector(self, operand: Operand, number: str) -> Word:
        """The vector of this number."""
        return self.load(operand, self.code.mul(number, LANES))

    def store(self, value: Word, operand: Operand, at: str) -> None:
        where = f"{value.name}, %{operand.name}[%row, {at}] : {operand.inside}"
        self.code.do(f"vector.store {where}, {value.type}" if value.lanes else f"memref.store {where}")

    def cell(self, cell: str) -> Word:
        """The logits of a cell, -inf behind the last one."""
        logits = self.sizes.logits
        if self.sizes.vocab % LANES == 0:
            return self.vector(logits, cell)
        filler, at = self.xp.array(-math.inf, "f32"), self.code.mul(cell, LANES)
        text = f"vector.transfer_read %logits[%row, {at}], {filler.name} {{in_bounds = [false]}}"
        return Word(self.code, self.code.let(f"{text} : {logits.inside}, vector<{LANES}xf32>"), "f32", LANES)

    def parameter(self, place: int, element: str) -> Word:
        word = self.load(self.sizes.parameters, self.index(place), 0)
        return word.view("f32") if element == "f32" else word

    def sum(self, count: str, value: Callable[[str], Word]) -> Word:
        """The sum of the lanes of `count` vectors of weights, in 64 bits."""
        code, xp = self.code, self.xp

        def some(low: str, totals: list[Word]) -> list[Word]:
            high = code.least(code.add(low, HALF), count)
            (part,) = xp.loop(low, high, [self.number(0).spread()], lambda at, words: [words[0] + value(at)])
            return [totals[0] + part.astype("i64")]

        (total,) = xp.loop(self.index(0), count, [self.number(0, "i64").spread()], some, step=HALF)
        return total.reduce("add")

    def count(self, count: str, holds: Callable[[str], Word]) -> Word:
        """In how many lanes of `count` vectors it holds."""

        def add(at: str, words: list[Word]) -> list[Word]:
            return [words[0] + holds(at).astype("i32")]

        (total,) = self.xp.loop(self.index(0), count, [self.number(0).spread()], add)
        return total.reduce("add")

    def search(self, point: Word, count: str, part: Callable[[str], Word]) -> tuple[Word, Word]:
        """The first of `count` parts at which their cumulative sum is above the point, and the point from there on."""

        def turn(at: str, words: list[Word]) -> list[Word]:
            so_far, place, before = words
            so_far = so_far + part(at).astype("i64")
            passed = so_far <= point
            return [so_far, place + passed.astype("i32"), self.xp.where(passed, so_far, before)]

        none = self.number(0, "i64")
        _, place, before = self.xp.loop(self.index(0), count, [none, self.number(0), none], turn)
        return place, point - before

    def search_lane(self, point: Word, count: str, weights: Callable[[str], Word]) -> tuple[Word, Word]:
        """The vector, of `count`, and its lane that the point is in."""
        vector, point = self.search(point, count, lambda at: weights(at).reduce("add"))
        self.store(weights(vector.index()), self.sizes.lanes, self.index(0))
        lane, _ = self.search(point, self.index(LANES), lambda at: self.load(self.sizes.lanes, at, 0))
        return vector, lane


class Ask:
    """What a row asks for, and how its tokens weigh."""

    def __init__(self, row: Row) -> None:
        self._row = row
        self.temperature = row.parameter(0, "f32")
        self.top_k = row.parameter(1, "i32")
        self.top_p = row.parameter(2, "f32")
        self.min_p = row.parameter(3, "f32")
        self.greedy = (self.temperature <= 0.0) | self.top_k.equals(1)
        self.free = self.top_k.equals(0) & (self.top_p >= 1.0) & (self.min_p <= 0.0)
        self.by_share = self.top_k.equals(0) & (self.top_p < 1.0)
        """Of the weight of all tokens."""
        self.best = self._best()

    def _best(self) -> Word:
        """The highest logit, +inf where one is not a number."""
        row, xp = self._row, self._row.xp

        def turn(at: str, words: list[Word]) -> list[Word]:
            return [xp.maximum(row.vector(row.sizes.tops, at), words[0])]

        start = xp.array(-math.inf, "f32").spread()
        (most,) = xp.loop(row.index(0), row.index(row.sizes.top_vectors), [start], turn)
        return most.reduce("maximumf")

    def distances(self, logits: Word) -> Word:
        found: Word = distances(self._row.xp, logits, self.best)
        return found

    def steps(self, distance: Word) -> Word:
        found: Word = steps_of(self._row.xp, distance, self.temperature)
        return found

    def weights(self, steps: Word) -> Word:
        found: Word = weights_of(self._row.xp, steps)
        return found

    def weigh(self, logits: Word) -> Word:
        return self.weights(self.steps(self.distances(logits)))

    def all(self) -> Word:
        """The weight of all tokens, from the blocks' sums, which may each pass 2**31."""
        row = self._row

        def add(at: str, words: list[Word]) -> list[Word]:
            return [words[0] + row.vector(row.sizes.sums, at).astype("i64")]

        start = row.number(0, "i64").spread()
        (total,) = row.xp.loop(row.index(0), row.index(row.sizes.sum_vectors), [start], add)
        return total.reduce("add")

    def point(self, total: Word) -> Word:
        """The row's noise as a point of a sum below 2**47: floor(noise * total / 2**32)."""
        row = self._row
        bits: Word = noise(row.xp, *(row.parameter(place, "i32") for place in (4, 5, 6)))
        high, low = (part.astype("i64") * total for part in (bits >> 16, bits & 0xFFFF))
        return (high + (low >> 16)) >> 16


def mass_of(total: Word) -> Word:
    """A sum of weights as float32, rounded as `workers.sampling.sample.mass_of` does it."""
    high, low = (part.astype("i32").astype("f32") for part in (total >> 16, total & 0xFFFF))
    return high * 65536.0 + low
