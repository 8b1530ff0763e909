"""The GEMM tile of quantized weights: integer dot products of a tile's levels with the activations of a row block.

The dot products of a group are exact integers, and the groups' sums are added up in float32 one group after the other:
a row's result is bitwise identical whatever rows are computed beside it.

A level never leaves the vector register that it was unpacked in.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.mlir_types import CACHE_LINE, ELEMENTS, I32_VECTOR, LANES, Type
from workers.iree.kernels.ir.operations import intrinsic, math_fma
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.matmul.activation_quantization import LIMB_BITS
from workers.iree.kernels.matmul.packing import DOT_INPUTS
from workers.iree.kernels.matmul.quantized_matmul import IntegerDot, QuantizedMatmul, QuantizedOperands

PREFETCH_DISTANCE = 8192
"""Bytes ahead of what is read. The CPU itself looks ahead no further than a page's end."""
MIN_CHAINS = 4
"""Dot products that do not wait for each other, at least."""
LEVELS = Type("i8", DOT_INPUTS * LANES)
"""A vector of levels: `DOT_INPUTS` of each lane."""

Prefetches = list[Callable[[], None]]
"""Each writes the prefetch of a cache line of what is read later."""


def quantized_gemm_tile(
    code: Code,
    matmul: QuantizedMatmul,
    operands: QuantizedOperands,
    tile: Value,
    rows: Sequence[Value],
    soon: Callable[[Value, Value], Prefetches],
) -> list[Value]:
    """Return float32 [16], the sums of a tile, of each of some rows.

    `soon` returns what to prefetch in the course of a group of activations. It gets the group's number, and the byte of
    the tile at which its levels begin.
    """

    def group(number: Value, sums: list[Value]) -> list[Value]:
        at = number * (matmul.vectors * matmul.packing.vector_bytes)
        return _Group(code, matmul, operands, tile, rows, number, at, soon(number, at)).add_to(sums)

    return code.loop(0, matmul.activations.groups, [code.floats(0.0)] * len(rows), group)


def prefetch_ahead(matmul: QuantizedMatmul, operands: QuantizedOperands, tile: Value, at: Value) -> Prefetches:
    """Prefetch what is read `PREFETCH_DISTANCE` bytes after a group's levels, which begin at byte `at` of a tile; the
    next tile follows its end."""
    return prefetch_lines(operands, tile, at + PREFETCH_DISTANCE, matmul.vectors)


def prefetch_lines(operands: QuantizedOperands, tile: Value, at: Value, lines: int) -> Prefetches:
    """Prefetch cache lines from byte `at` of a tile on, which may lie beyond its end."""

    def one(line: int) -> Callable[[], None]:
        return lambda: operands.weights.prefetch([tile, at + line * CACHE_LINE])

    return [one(line) for line in range(lines)]


@dataclass(frozen=True, slots=True)
class _Group:
    """One group of activations of some rows, and its levels in a tile."""

    code: Code
    matmul: QuantizedMatmul
    operands: QuantizedOperands
    tile: Value
    rows: Sequence[Value]
    number: Value
    levels_at: Value
    """The byte of the tile where its levels begin."""
    prefetches: Prefetches

    def add_to(self, sums: Sequence[Value]) -> list[Value]:
        """Return the sums of each row plus the group's."""
        format, inputs = self.matmul.packing.format, self.matmul.activations.inputs
        group = self.number // (format.group // self.matmul.activations.group)
        start = self.matmul.packing.level_bytes(inputs)
        scale = self._entries(start, group)
        if format.zero == "middle":
            zero = self.code.floats(-float(format.middle))
        else:
            zero = self._entries(start + self.matmul.packing.scale_bytes(inputs), group)
        dots, out = self._dots(), []
        for number, (row, before) in enumerate(zip(self.rows, sums, strict=True)):
            row_scale, row_sum = (self.operands.scales.load([at, row, self.number]).broadcast() for at in range(2))
            dot = self._total(dots, number)
            both = scale * row_scale
            if format.zero == "bias":
                before = math_fma(zero, row_sum, before)
            else:
                dot = math_fma(zero, row_sum, dot)
            out.append(math_fma(both, dot, before))
        return out

    def _entries(self, start: int, group: Value) -> Value:
        """Return float32: one number of each lane for the group from the tile's table at byte `start`."""
        packing = self.matmul.packing
        size = packing.scale_bytes(packing.format.group)
        at = group * size + start
        loaded = self.operands.weights.load_vector([self.tile, at], size)
        return loaded.bitcast(ELEMENTS[packing.format.scales]).astype("f32")

    def _dots(self) -> "_Totals":
        """Multiply the group's levels by all rows' integers.

        The next product waits for none of the last few: what waits fills the CPU's scheduler. Sums of integers are
        exact in any order.
        """
        matmul, levels = self.matmul, list[Value]()
        none = self.code.constant(0, I32_VECTOR)
        chains = max(1, MIN_CHAINS // len(self.rows))
        totals: _Totals = {}
        lines = len(self.prefetches)
        run = self.number * matmul.dots
        runs = [run + j for j in range(matmul.dots)]
        for limb in range(matmul.activations.limbs):
            for j in range(matmul.dots):
                if limb == 0:
                    # A few at a time: a core waits for no more than a dozen lines at once.
                    for prefetch in self.prefetches[j * lines // matmul.dots : (j + 1) * lines // matmul.dots]:
                        prefetch()
                if len(levels) == j:
                    levels += self._levels(j * matmul.vectors // matmul.dots)
                for number, row in enumerate(self.rows):
                    x = self.operands.levels.load([limb, row, runs[j]])
                    sums = totals.setdefault((number, limb), [none] * chains)
                    sums[j % chains] = _dot(matmul.dot, sums[j % chains], levels[j], x)
        return totals

    def _levels(self, vector: int) -> list[Value]:
        """Load a vector of the group's levels, and unpack it."""
        size = self.matmul.packing.vector_bytes
        loaded = self.operands.weights.load_vector([self.tile, self.levels_at + vector * size], size)
        if self.matmul.packing.format.bits == 8:
            return [loaded]
        words = loaded.bitcast("i32")
        halves = words, words >> 4
        masked = [half & 0x0F0F0F0F for half in halves]
        return [half.bitcast("i8") for half in masked]

    def _total(self, dots: "_Totals", row: int) -> Value:
        """Return float32: of several limbs each sum is fused onto the rounded one of those before it."""
        total: Value | None = None
        for limb in range(self.matmul.activations.limbs):
            floats = reduce(add, dots[row, limb]).astype("f32", signed=True)
            total = floats if total is None else math_fma(total, float(1 << LIMB_BITS), floats)
        assert total is not None
        return total


_Totals = dict[tuple[int, int], list[Value]]
"""int32 sums of several chains, by row and limb."""


def _dot(dot: IntegerDot, before: Value, level: Value, x: Value) -> Value:
    """Return `before` and the products of four levels of each lane with four integers of a row."""
    if dot == "vpdpbusd":
        name, takes = f"llvm.x86.avx512.vpdpbusd.{32 * LANES}", (I32_VECTOR, LEVELS, LEVELS)
        return intrinsic(name, [before, level, x.broadcast().bitcast("i8")], takes, I32_VECTOR)
    words = level.bitcast("i32")
    for number in range(DOT_INPUTS):
        one = (words >> 8 * number) & 255
        signed = (x << 24 - 8 * number).shift_right_signed(24)
        before = before + one * signed.broadcast()
    return before
