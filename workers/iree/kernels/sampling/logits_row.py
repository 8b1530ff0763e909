"""A row of logits in a kernel: its operands, the row's parameters, and sums over its weights."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workers.iree.kernels.ir.array_namespace import ArrayNamespace
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.memory import ROWS, Index
from workers.iree.kernels.ir.mlir_types import I32, LANES, Type
from workers.iree.kernels.ir.value import Value
from workers.sampling.filters import excludes
from workers.sampling.fixed_point import distances, steps_of, weights_of
from workers.sampling.noise import noise
from workers.sampling.sampling_arrays import SamplingArrays
from workers.sampling.top_candidates import CELLS
from workers.sampling.vocabulary_blocks import BLOCK

PARAMETERS = len(SamplingArrays._fields)
"""Numbers of a row, in the order of `SamplingArrays`: 32 bits each."""
CELLS_PER_BLOCK = BLOCK // LANES
NEAREST = CELLS + LANES
"""The first of the steps of all cells among the candidates, behind their cells."""
MAX_VECTORS = 128
"""Vectors of weights whose sums stay below 2**32 in each lane."""
I64 = Type("i64")


@dataclass(frozen=True, slots=True)
class Operand:
    """A buffer of the sampling kernels. Its first dimension is `ROWS`."""

    name: str
    shape: tuple[int, ...]
    element: str


@dataclass(frozen=True, slots=True)
class SamplingShape:
    """The sizes of one vocabulary in cells of `LANES` tokens and blocks of `BLOCK`, and the kernels' operands."""

    vocab: int

    @property
    def cells(self) -> int:
        return -(-self.vocab // LANES)

    @property
    def blocks(self) -> int:
        return -(-self.vocab // BLOCK)

    @property
    def top_vectors(self) -> int:
        """Vectors of the highest logits of cells, padded with -inf."""
        return -(-self.cells // LANES)

    @property
    def sum_vectors(self) -> int:
        """Vectors of the blocks' sums, padded with 0."""
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
    def candidates(self) -> Operand:
        """The cells that have the likeliest tokens, and from `NEAREST` on the steps of each cell's likeliest token."""
        return Operand("candidates", (ROWS, NEAREST + self.top_vectors * LANES), "i32")

    @property
    def lanes(self) -> Operand:
        """A number for each token, or two for each token of the candidates."""
        return Operand("lanes", (ROWS, max(self.cells, 2 * CELLS) * LANES), "i32")


class LogitsRow:
    """Writes the code for one row of a kernel."""

    def __init__(
        self, name: str, workgroups: int, shape: SamplingShape, takes: Sequence[Operand], gives: Sequence[Operand]
    ) -> None:
        self.kernel = Kernel(name, workgroups)
        self.shape = shape
        self.code = self.kernel.code
        self.xp = ArrayNamespace(self.code)
        self._memory = {each: self.kernel.input(each.name, each.shape, each.element) for each in takes}
        self._memory |= {each: self.kernel.output(each.name, each.shape, each.element) for each in gives}

    def number(self, value: int) -> Value:
        """Return a constant int32."""
        return self.code.constant(value, I32)

    def vector_of(self, value: float, element: str = "i32") -> Value:
        """Return a constant in every lane."""
        return self.code.constant(value, Type(element, LANES))

    def place(self, index: Value) -> Value:
        """Return an index as an int32."""
        return index.astype("i32")

    def load(self, operand: Operand, at: Index) -> Value:
        """Load an element of the row."""
        return self._memory[operand].load([self.kernel.row, at])

    def load_vector(self, operand: Operand, at: Index) -> Value:
        """Load `LANES` elements of the row, from one on."""
        return self._memory[operand].load_vector([self.kernel.row, at])

    def vector(self, operand: Operand, number: Value) -> Value:
        """Load the vector of this number."""
        return self.load_vector(operand, number * LANES)

    def store(self, value: Value, operand: Operand, at: Index) -> None:
        """Store an element of the row, or a vector from one on."""
        self._memory[operand].store(value, [self.kernel.row, at])

    def finish(self, token: Value) -> str:
        """Store the row's token and return the kernel's text."""
        self._memory[self.shape.tokens].store(token, [self.kernel.row])
        return self.kernel.function()

    def cell(self, cell: Value) -> Value:
        """Return the logits of a cell, -inf behind the last one."""
        logits = self.shape.logits
        if self.shape.vocab % LANES == 0:
            return self.vector(logits, cell)
        return self._memory[logits].load_padded([self.kernel.row, cell * LANES], -math.inf)

    def parameter(self, place: int, element: str) -> Value:
        """Load one of the row's `PARAMETERS`."""
        word = self.load(self.shape.parameters, place)
        return word.view("f32") if element == "f32" else word

    def sum(self, count: Index, value: Callable[[Value], Value]) -> Value:
        """Return the sum of the lanes of `count` vectors of weights, in 64 bits."""
        code, end = self.code, self.code.index(count)

        def some(low: Value, totals: list[Value]) -> list[Value]:
            high = (low + MAX_VECTORS).minimum(end)
            (part,) = code.loop(low, high, [self.vector_of(0)], lambda at, sums: [sums[0] + value(at)])
            return [totals[0] + part.astype("i64")]

        (total,) = code.loop(0, end, [self.vector_of(0, "i64")], some, MAX_VECTORS)
        return total.reduce("add")

    def count(self, count: Index, holds: Callable[[Value], Value]) -> Value:
        """Return in how many lanes of `count` vectors a condition holds."""

        def add(at: Value, counts: list[Value]) -> list[Value]:
            return [counts[0] + holds(at).astype("i32")]

        (total,) = self.code.loop(0, count, [self.vector_of(0)], add)
        return total.reduce("add")

    def search(self, point: Value, count: Index, part: Callable[[Value], Value]) -> tuple[Value, Value]:
        """Return the first of `count` parts at which their cumulative sum is above the point, and the point from there
        on."""

        def step(at: Value, state: list[Value]) -> list[Value]:
            so_far, place, before = state
            so_far = so_far + part(at).astype("i64")
            passed = so_far <= point
            return [so_far, place + passed.astype("i32"), passed.select(so_far, before)]

        none = self.code.constant(0, I64)
        _, place, before = self.code.loop(0, count, [none, self.number(0), none], step)
        return place, point - before

    def search_lane(self, point: Value, count: Index, weights: Callable[[Value], Value]) -> tuple[Value, Value]:
        """Return the vector, of `count`, and its lane that the point is in."""
        vector, point = self.search(point, count, lambda at: weights(at).reduce("add"))
        self.store(weights(vector.astype("index")), self.shape.lanes, 0)
        lane, _ = self.search(point, LANES, lambda at: self.load(self.shape.lanes, at))
        return vector, lane


class RowSampling:
    """A row's sampling parameters, and the weights of its tokens (`workers.sampling.fixed_point`)."""

    def __init__(self, row: LogitsRow) -> None:
        self._row = row
        self.temperature = row.parameter(0, "f32")
        self.top_k = row.parameter(1, "i32")
        self.top_p = row.parameter(2, "f32")
        self.min_p = row.parameter(3, "f32")
        self.typical_p = row.parameter(7, "f32")
        self.xtc_probability = row.parameter(8, "f32")
        self.xtc_threshold = row.parameter(9, "f32")
        self.greedy = (self.temperature <= 0.0) | self.top_k.equals(1)
        self.typical = self.typical_p < 1.0
        self.xtc = self.xtc_probability > 0.0
        common = self.top_k.equals(0) & (self.top_p >= 1.0) & (self.min_p <= 0.0)
        self.unfiltered = common & self.typical.equals(0) & self.xtc.equals(0)
        self.top_p_of_all = self.top_k.equals(0) & (self.top_p < 1.0) & self.typical.equals(0)
        """top_p is a fraction of the weight of all tokens."""
        self.best = self._best()

    def _best(self) -> Value:
        """Return the highest logit, +inf where one is NaN."""
        row, xp = self._row, self._row.xp

        def larger(at: Value, most: list[Value]) -> list[Value]:
            return [xp.maximum(row.vector(row.shape.tops, at), most[0])]

        (most,) = row.code.loop(0, row.shape.top_vectors, [row.vector_of(-math.inf, "f32")], larger)
        return most.reduce("maximumf")

    def distances(self, logits: Value) -> Value:
        found: Value = distances(self._row.xp, logits, self.best)
        return found

    def steps(self, distance: Value) -> Value:
        found: Value = steps_of(self._row.xp, distance, self.temperature)
        return found

    def weights(self, steps: Value) -> Value:
        found: Value = weights_of(self._row.xp, steps)
        return found

    def weights_of(self, logits: Value) -> Value:
        return self.weights(self.steps(self.distances(logits)))

    def total(self) -> Value:
        """Return the weight of all tokens, from the blocks' sums, which may each pass 2**31."""
        row = self._row

        def add(at: Value, totals: list[Value]) -> list[Value]:
            return [totals[0] + row.vector(row.shape.sums, at).astype("i64")]

        (total,) = row.code.loop(0, row.shape.sum_vectors, [row.vector_of(0, "i64")], add)
        return total.reduce("add")

    def excludes(self) -> Value:
        """Return whether XTC excludes tokens of the row."""
        low, high, position = (self._row.parameter(place, "i32") for place in (4, 5, 6))
        filters = (self.temperature, self.top_k, self.top_p, self.min_p, low, high, position)
        found: Value = excludes(self._row.xp, SamplingArrays(*filters, self.typical_p, self.xtc_probability))
        return found

    def point(self, total: Value) -> Value:
        """Return the row's noise as a point of a sum below 2**47: floor(noise * total / 2**32)."""
        row = self._row
        low, high, position = (row.parameter(place, "i32") for place in (4, 5, 6))
        bits: Value = noise(row.xp, low, high, position)
        high, low = (part.astype("i64") * total for part in (bits >> 16, bits & 0xFFFF))
        return (high + (low >> 16)) >> 16


def mass_of(total: Value) -> Value:
    """Return a sum of weights as float32, rounded as `workers.sampling.sample.mass_of` does it."""
    high, low = (part.astype("i32").astype("f32") for part in (total >> 16, total & 0xFFFF))
    return high * 65536.0 + low
