"""Quantization of activations: rows as integers, which products with quantized weights multiply by.

A row is rounded to 8 bits in groups of neighbouring inputs, each with its own scale, as llama.cpp does for its Q8_0 and
Q4_0 products, or to 22 bits in three planes. A row is rounded by itself, whatever rows are beside it.
"""

from dataclasses import dataclass

import numpy as np

from workers.iree.kernels.ir.arithmetic import Arithmetic, stride
from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.memory import Index, Memory
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.operations import absolute, round_even
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.matmul.packing import RUN, Packing

ROUND_GROUP = 64
"""The most activations that share a scale."""
LOW_BITS = 7
"""Bits of each plane but the first, of an integer of several planes."""
SMALLEST = int(np.float32(1e-30).view(np.int32))
"""The minimum magnitude of a group's largest activation, as bits; keeps a group of zeros from dividing by zero."""


@dataclass(frozen=True, slots=True)
class Rounded:
    """How rows are quantized for a product: 8 bits an activation, and two numbers a group."""

    rows: int
    inputs: int
    group: int
    """Inputs that share a scale."""
    weighted: bool
    """The second number is the sum of the group's activations; without it that of their integers."""
    arithmetic: Arithmetic
    """How the rows are packed before."""
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


def rounded_rows(rows: int, inputs: int, packing: Packing, arithmetic: Arithmetic, planes: int) -> Rounded:
    """Return how rows are quantized for a matrix of this packing."""
    group, weighted = min(packing.format.group, ROUND_GROUP), packing.format.zero == "bias"
    return Rounded(rows, inputs, group, weighted, arithmetic, planes)


def round_rows(r: Rounded) -> str:
    """Packed words [rows, stride] -> int32 [planes, rows, inputs / 4] and float32 [2, rows, groups].

    A group's largest activation becomes `last` or its negative, ties go to the even integer. A NaN or infinity makes
    its group's scale NaN, and so every output.
    """
    d = Kernel(r.name, r.rows)
    x = d.take((r.rows, stride(r.inputs, r.arithmetic)), "i32")
    rounding = Rounding(r, x, d.give(r.levels_shape, "i32"), d.give(r.sums_shape, "f32"))
    rounding.row(d.code, d.workgroup)
    return d.function()


@dataclass(frozen=True, slots=True)
class Rounding:
    """The memory that quantization reads and writes: see `round_rows`."""

    kind: Rounded
    x: Memory
    levels: Memory
    sums: Memory

    def row(self, code: Code, row: Index) -> None:
        """Quantize a row."""
        code.repeat(0, self.kind.groups, lambda group: self.group(code, row, group))

    def group(self, code: Code, row: Index, number: Value) -> None:
        """Quantize one group of a row."""
        kind, start = self.kind, number * self.kind.group
        lanes = [start + lane for lane in range(0, kind.group, LANES)]
        values = [self._read(row, lane) for lane in lanes]
        top = _largest(values)
        times = (kind.last / top).broadcast()
        scale = top / kind.last
        total: Value | None = None
        for value, lane in zip(values, lanes, strict=True):
            integers = round_even(value * times).astype("i32")
            self._put(row, lane, integers)
            total = integers if total is None else total + integers
        assert total is not None
        floats = total.reduce("add").astype("f32", signed=True)
        second = floats * scale if kind.weighted else floats
        for which, number_of_group in enumerate((scale, second)):
            self.sums.store(number_of_group, [which, row, number])

    def _read(self, row: Index, lane: Value) -> Value:
        arithmetic = self.kind.arithmetic
        return arithmetic.unpack(self.x.load_vector([row, lane // arithmetic.per_word], LANES // arithmetic.per_word))

    def _put(self, row: Index, lane: Value, rest: Value) -> None:
        """Store integers in their planes: each takes the nearest multiple of its lowest bit and leaves the rest."""
        planes = self.kind.planes
        for plane in range(planes):
            part, bits = rest, LOW_BITS * (planes - 1 - plane)
            if bits:
                part = (rest + (1 << bits - 1)).shift_right_signed(bits)
                rest = rest - (part << bits)
            self.levels.store(part.astype("i8").bitcast("i32"), [plane, row, lane // RUN])


def _largest(values: list[Value]) -> Value:
    """Return the largest magnitude, at least `SMALLEST`.

    Magnitudes are in the order of their bits, and NaN is above all of them.
    """
    largest = absolute(values[0]).bitcast("i32")
    for value in values[1:]:
        largest = largest.maximum(absolute(value).bitcast("i32"), signed=True)
    return largest.reduce("maxsi").maximum(SMALLEST, signed=True).view("f32")
