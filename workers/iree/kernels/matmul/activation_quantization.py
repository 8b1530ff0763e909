"""Quantization of activations: rows as integers, which products with quantized weights multiply by.

A row is rounded to 8 bits in groups of neighbouring inputs, each with its own scale, as llama.cpp does for its Q8_0 and
Q4_0 products, or to 22 bits in three limbs. A row is rounded by itself, whatever rows are beside it.
"""

from dataclasses import dataclass

import numpy as np

from workers.iree.kernels.ir.arithmetic import Arithmetic, row_stride
from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.memory import Index, Memory
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.operations import absolute, round_even
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.matmul.integer_dots import IntegerDots
from workers.iree.kernels.matmul.packing import DOT_INPUTS, Packing
from workers.iree.kernels.rowwise.row_workgroups import RowWorkgroups

MAX_GROUP = 64
"""The most activations that share a scale."""
LIMB_BITS = 7
"""Bits of each limb but the first, of an integer of several limbs."""
EVEN_FIRST = [2 * (dot + lane) for dot in range(0, LANES, DOT_INPUTS) for lane in (0, 2, 1, 3)]
"""The low int16 of a vector of integers, in the order of pairs."""
LOW_BYTES = range(0, 4 * LANES, 4)
"""The low bytes of a vector of integers."""
MIN_MAGNITUDE = int(np.float32(1e-30).view(np.int32))
"""The minimum magnitude of a group's largest activation, as bits; keeps a group of zeros from dividing by zero."""


@dataclass(frozen=True, slots=True)
class ActivationQuantization:
    """The quantized form of rows for a product: integers of 8 or 22 bits, and two numbers a group."""

    rows: int
    inputs: int
    group: int
    """Inputs that share a scale."""
    weighted: bool
    """The second number of a group is the sum of its activations; without it the sum of their integers."""
    arithmetic: Arithmetic
    """The arithmetic whose packed rows are quantized."""
    limbs: int
    """1: integers of 8 bits. 3: of 22 bits, their upper eight in the first limb, then seven and seven."""
    pairs: bool = False
    """See `IntegerDot`."""
    middle: int = 0
    """If it is not 0, the second number of a group is its integers' sum times -middle, as bits of int32: what the
    integer sums of a product begin with, so that its levels count from `middle`."""

    @classmethod
    def of(
        cls, rows: int, inputs: int, packing: Packing, arithmetic: Arithmetic, limbs: int, dots: IntegerDots
    ) -> "ActivationQuantization":
        """Return how rows are quantized for a matrix of this packing."""
        format = packing.format
        group, weighted, dot = min(format.group, MAX_GROUP), format.zero == "bias", dots.of(format)
        middle = format.middle if format.zero == "middle" and limbs == 1 and dot.begins else 0
        return cls(rows, inputs, group, weighted, arithmetic, limbs, dot.pairs, middle)

    @property
    def begins_sums(self) -> bool:
        return self.middle != 0

    @property
    def max_level(self) -> int:
        """The integer of a group's largest activation."""
        return 127 << LIMB_BITS * (self.limbs - 1)

    @property
    def groups(self) -> int:
        return self.inputs // self.group

    @property
    def kind(self) -> str:
        """The part of kernels' names that tells how a row is quantized."""
        sums = "weighted" if self.weighted else f"middle_{self.middle}" if self.middle else "plain"
        return f"{self.group}_{sums}{'_pairs' * self.pairs}"

    @property
    def name(self) -> str:
        """The kernel's name, without what it takes besides."""
        return f"baton_quantize_{8 * self.limbs}_{self.rows}_{self.inputs}_{self.kind}"

    @property
    def per_word(self) -> int:
        """Integers in a word."""
        return 2 if self.pairs else DOT_INPUTS

    @property
    def words(self) -> int:
        """Words of the four neighbouring inputs of a dot."""
        return DOT_INPUTS // self.per_word

    @property
    def levels_shape(self) -> tuple[int, int, int]:
        """int32: words of the integers of neighbouring inputs."""
        return (self.limbs, self.rows, self.inputs // self.per_word)

    @property
    def scales_shape(self) -> tuple[int, int, int]:
        """float32: the scales of all groups, then their sums."""
        return (2, self.rows, self.groups)


def quantize_rows(name: str, kind: ActivationQuantization, *, live: bool = False) -> str:
    """Packed words [rows, row_stride] (, live i32 [1]) -> int32 [limbs, rows, inputs / per_word] and float32
    [2, rows, groups], of which the first `live` rows are computed.

    A group's largest activation becomes `max_level` or its negative, ties go to the even integer. A NaN or infinity
    makes its group's scale NaN, and so every output.
    """
    groups = RowWorkgroups.of(kind.rows)
    kernel = Kernel(name, groups.count)
    x = kernel.input("x", (kind.rows, row_stride(kind.inputs, kind.arithmetic)), "i32")
    number = kernel.input("live", (1,), "i32") if live else None
    levels = kernel.output("levels", kind.levels_shape, "i32")
    scales = kernel.output("scales", kind.scales_shape, "f32")
    quantizer = ActivationQuantizer(kind, x, levels, scales)
    groups.write(kernel, number, lambda row: quantizer.row(kernel.code, row))
    return kernel.function()


@dataclass(frozen=True, slots=True)
class ActivationQuantizer:
    """The memory that quantization reads and writes: see `quantize_rows`."""

    kind: ActivationQuantization
    x: Memory
    levels: Memory
    scales: Memory

    def row(self, code: Code, row: Index) -> None:
        """Quantize a row."""
        code.repeat(0, self.kind.groups, lambda group: self.group(code, row, group))

    def group(self, code: Code, row: Index, number: Value) -> None:
        """Quantize one group of a row."""
        start = number * self.kind.group
        self.write(row, number, [self._load(row, start + lane) for lane in range(0, self.kind.group, LANES)])

    def write(self, row: Index, number: Value, values: list[Value]) -> None:
        """Store the values of a row's group, float32 [16] each, quantized."""
        kind, start = self.kind, number * self.kind.group
        lanes = [start + lane for lane in range(0, kind.group, LANES)]
        top = _largest(values)
        inverse = (kind.max_level / top).broadcast()
        scale = top / kind.max_level
        total: Value | None = None
        for value, lane in zip(values, lanes, strict=True):
            integers = round_even(value * inverse).astype("i32")
            self._store(row, lane, integers)
            total = integers if total is None else total + integers
        assert total is not None
        integer = total.reduce("add")
        second = (integer * -kind.middle).view("f32") if kind.middle else integer.astype("f32", signed=True)
        for which, number_of_group in enumerate((scale, second * scale if kind.weighted else second)):
            self.scales.store(number_of_group, [which, row, number])

    def _load(self, row: Index, lane: Value) -> Value:
        arithmetic = self.kind.arithmetic
        return arithmetic.unpack(self.x.load_vector([row, lane // arithmetic.per_word], LANES // arithmetic.per_word))

    def _store(self, row: Index, lane: Value, rest: Value) -> None:
        """Store integers in their limbs: each takes the nearest multiple of its lowest bit and leaves the rest."""
        limbs = self.kind.limbs
        for limb in range(limbs):
            part, bits = rest, LIMB_BITS * (limbs - 1 - limb)
            if bits:
                part = (rest + (1 << bits - 1)).shift_right_signed(bits)
                rest = rest - (part << bits)
            # Not `astype`: IREE would make a dozen instructions of what is one for LLVM.
            low = part.bitcast("i16").shuffle(EVEN_FIRST) if self.kind.pairs else part.bitcast("i8").shuffle(LOW_BYTES)
            self.levels.store(low.bitcast("i32"), [limb, row, lane // self.kind.per_word])


def _largest(values: list[Value]) -> Value:
    """Return the largest magnitude, at least `MIN_MAGNITUDE`.

    Magnitudes are in the order of their bits, and NaN is above all of them.
    """
    largest = absolute(values[0]).bitcast("i32")
    for value in values[1:]:
        largest = largest.maximum(absolute(value).bitcast("i32"), signed=True)
    return largest.reduce("maxsi").maximum(MIN_MAGNITUDE, signed=True).view("f32")
