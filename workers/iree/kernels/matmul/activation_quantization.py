"""Rows of activations as integers: what products with weights of few bits multiply by.

A row is rounded to 8 bits in groups of neighbouring inputs, each with its own scale, as llama.cpp does for its Q8_0 and
Q4_0 products, or to 22 bits in three planes. A row is rounded by itself, whatever rows are beside it.
"""

from dataclasses import dataclass

import numpy as np

from workers.iree.kernels.ir.arithmetic import Arithmetic, stride
from workers.iree.kernels.ir.builder import FLOATS, LANES, Code, Value
from workers.iree.kernels.ir.executable import Kernel
from workers.iree.kernels.matmul.packing import RUN, Packing

ROUND_GROUP = 64
"""The most activations that share a scale."""
LOW_BITS = 7
"""Of an integer of several planes, in each but the first."""
SMALLEST = int(np.float32(1e-30).view(np.int32))
"""The least size of a group's largest activation, as bits; keeps a group of zeros from dividing by zero."""
INTS = f"vector<{LANES}xi32>"


@dataclass(frozen=True, slots=True)
class Rounded:
    """Rows of activations as a product takes them: 8 bits each and two numbers a group."""

    rows: int
    inputs: int
    group: int
    """Inputs that share a scale."""
    weighted: bool
    """The second number is the sum of the group's activations; without it that of their integers."""
    words: Arithmetic
    """Of the rows before they are rounded."""
    planes: int
    """1: integers of 8 bits. 3: of 22 bits, their upper eight in the first plane, then seven and seven."""

    @property
    def last(self) -> int:
        """The integer of a group's largest activation."""
        return 127 << LOW_BITS * (self.planes - 1)

    @property
    def groups(self) -> int:
        return self.inputs // self.group

    @property
    def name(self) -> str:
        kind = "weighted" if self.weighted else "plain"
        return f"baton_round{8 * self.planes}_{self.rows}_{self.inputs}_{self.group}_{kind}"

    @property
    def levels_shape(self) -> tuple[int, int, int]:
        """int32, each four neighbours' integers."""
        return (self.planes, self.rows, self.inputs // RUN)

    @property
    def sums_shape(self) -> tuple[int, int, int]:
        """Scales, then sums."""
        return (2, self.rows, self.groups)


def rounded_rows(rows: int, inputs: int, packing: Packing, words: Arithmetic, planes: int) -> Rounded:
    """How rows are rounded for a matrix of this packing."""
    return Rounded(rows, inputs, min(packing.format.group, ROUND_GROUP), packing.format.zero == "bias", words, planes)


def round_rows(r: Rounded) -> str:
    """words [rows, stride] -> int32 [planes, rows, inputs / 4] and float32 [2, rows, groups].

    A group's largest activation becomes `last` or its negative, ties go to the even integer. What is not a number
    makes its group's scale not a number, and so every output.
    """
    d = Kernel(r.name, r.rows)
    x = d.take((r.rows, stride(r.inputs, r.words)), "i32")
    rounding = Rounding(r, x, d.give(r.levels_shape, "i32"), d.give(r.sums_shape, "f32"))
    rounding.row(d.code, d.workgroup())
    return d.function()


@dataclass(frozen=True, slots=True)
class Rounding:
    """The memory that rounding reads and writes: see `round_rows`."""

    kind: Rounded
    x: Value
    levels: Value
    sums: Value

    def row(self, code: Code, row: str) -> None:
        """Round a row."""
        code.repeat(code.index(0), code.index(self.kind.groups), 1, lambda group: self.group(code, row, group))

    def group(self, code: Code, row: str, number: str) -> None:
        """Round one group of a row."""
        kind, start = self.kind, code.mul(number, self.kind.group)
        lanes = [code.add(start, lane) for lane in range(0, kind.group, LANES)]
        values = [self._read(code, row, lane) for lane in lanes]
        top = self._largest(code, values)
        last = code.constant(f"{kind.last}.0 : f32")
        times = code.spread(code.let(f"arith.divf {last}, {top} : f32"))
        scale = code.let(f"arith.divf {top}, {last} : f32")
        total = ""
        for value, lane in zip(values, lanes, strict=True):
            scaled = code.let(f"arith.mulf {value}, {times} : {FLOATS}")
            even = code.let(f"math.roundeven {scaled} : {FLOATS}")
            ints = code.let(f"arith.fptosi {even} : {FLOATS} to {INTS}")
            self._put(code, row, lane, ints)
            total = code.let(f"arith.addi {total}, {ints} : {INTS}") if total else ints
        summed = code.let(f"vector.reduction <add>, {total} : {INTS} into i32")
        floats = code.let(f"arith.sitofp {summed} : i32 to f32")
        second = code.let(f"arith.mulf {floats}, {scale} : f32") if kind.weighted else floats
        for which, number_of_group in enumerate((scale, second)):
            code.set(number_of_group, self.sums, [code.index(which), row, number])

    def _read(self, code: Code, row: str, lane: str) -> str:
        words = self.kind.words
        return words.floats(code, code.read(self.x, [row, code.div(lane, words.word)], LANES // words.word))

    def _largest(self, code: Code, values: list[str]) -> str:
        """The size of the largest, at least `SMALLEST`: sizes are in the order of their bits, and above all of them
        is what is not a number."""
        largest = ""
        for value in values:
            size = code.let(f"vector.bitcast {code.let(f'math.absf {value} : {FLOATS}')} : {FLOATS} to {INTS}")
            largest = code.let(f"arith.maxsi {largest}, {size} : {INTS}") if largest else size
        bits = code.let(f"vector.reduction <maxsi>, {largest} : {INTS} into i32")
        least = code.let(f"arith.maxsi {bits}, {code.constant(f'{SMALLEST} : i32')} : i32")
        return code.let(f"arith.bitcast {least} : i32 to f32")

    def _put(self, code: Code, row: str, lane: str, rest: str) -> None:
        """Store integers in their planes: each takes the nearest multiple of its lowest bit and leaves the rest."""
        planes = self.kind.planes
        for plane in range(planes):
            part, bits = rest, LOW_BITS * (planes - 1 - plane)
            if bits:
                half, by = (code.constant(f"dense<{number}> : {INTS}") for number in (1 << bits - 1, bits))
                nearest = code.let(f"arith.addi {rest}, {half} : {INTS}")
                part = code.let(f"arith.shrsi {nearest}, {by} : {INTS}")
                covered = code.let(f"arith.shli {part}, {by} : {INTS}")
                rest = code.let(f"arith.subi {rest}, {covered} : {INTS}")
            narrow = code.let(f"arith.trunci {part} : {INTS} to vector<{LANES}xi8>")
            runs = code.let(f"vector.bitcast {narrow} : vector<{LANES}xi8> to vector<{LANES // RUN}xi32>")
            code.put(runs, LANES // RUN, self.levels, [code.index(plane), row, code.div(lane, RUN)])
