"""A tile of quantized weights times a block of rows: integer dot products of levels with quantized activations.

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
from workers.iree.kernels.matmul.activation_quantization import LOW_BITS
from workers.iree.kernels.matmul.packing import RUN
from workers.iree.kernels.matmul.quantized_product import Dot, Factors, Product

PREFETCH = 8192
"""Bytes ahead of what is read. The CPU itself looks ahead no further than a page's end."""
CHAINS = 4
"""Products that do not wait for each other, at least."""
LEVELS = Type("i8", RUN * LANES)
"""A vector of levels: `RUN` of each lane."""

Fetches = list[Callable[[], None]]
"""Each writes the prefetch of a cache line of what is read later."""


def tile_sums(
    code: Code,
    p: Product,
    factors: Factors,
    tile: Value,
    rows: Sequence[Value],
    soon: Callable[[Value, Value], Fetches],
) -> list[Value]:
    """Return float32 [16] of each of some rows.

    `soon` returns what to fetch in the course of a group of activations: it gets the group's number and the byte of the
    tile at which its levels begin.
    """

    def group(number: Value, sums: list[Value]) -> list[Value]:
        at = number * (p.vectors * p.packing.run_bytes)
        return _Group(code, p, factors, tile, rows, number, at, soon(number, at)).added(sums)

    return code.loop(0, p.rounded.groups, [code.floats(0.0)] * len(rows), group)


def fetch_straight(p: Product, factors: Factors, tile: Value, at: Value) -> Fetches:
    """Fetch what is read `PREFETCH` bytes after a group's levels, which begin at byte `at` of a tile; the next tile
    follows its end."""
    return fetch(factors, tile, at + PREFETCH, p.vectors)


def fetch(factors: Factors, tile: Value, at: Value, lines: int) -> Fetches:
    """Fetch cache lines from byte `at` of a tile on, which may lie beyond its end."""

    def one(line: int) -> Callable[[], None]:
        return lambda: factors.weights.prefetch([tile, at + line * CACHE_LINE])

    return [one(line) for line in range(lines)]


@dataclass(frozen=True, slots=True)
class _Group:
    """One group of activations of some rows, and its levels in a tile."""

    code: Code
    p: Product
    factors: Factors
    tile: Value
    rows: Sequence[Value]
    number: Value
    levels_at: Value
    """The byte of the tile where its levels begin."""
    fetches: Fetches

    def added(self, sums: Sequence[Value]) -> list[Value]:
        """Return the sums of each row with the group's."""
        format, inputs = self.p.packing.format, self.p.rounded.inputs
        group = self.number // (format.group // self.p.rounded.group)
        start = self.p.packing.level_bytes(inputs)
        scale = self._entries(start, group)
        if format.zero == "middle":
            zero = self.code.floats(-float(format.middle))
        else:
            zero = self._entries(start + self.p.packing.scale_bytes(inputs), group)
        dots, out = self._dots(), []
        for number, (row, before) in enumerate(zip(self.rows, sums, strict=True)):
            row_scale, row_sum = (self.factors.sums.load([at, row, self.number]).broadcast() for at in range(2))
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
        packing = self.p.packing
        size = packing.scale_bytes(packing.format.group)
        at = group * size + start
        loaded = self.factors.weights.load_vector([self.tile, at], size)
        return loaded.bitcast(ELEMENTS[packing.format.scales]).astype("f32")

    def _dots(self) -> "_Totals":
        """Multiply the group's levels by all rows' integers.

        The next product waits for none of the last few: what waits fills the CPU's scheduler. Sums of integers are
        exact in any order.
        """
        p, levels = self.p, list[Value]()
        none = self.code.constant(0, I32_VECTOR)
        chains = max(1, CHAINS // len(self.rows))
        totals: _Totals = {}
        run = self.number * p.dots
        runs = [run + j for j in range(p.dots)]
        for plane in range(p.rounded.planes):
            for j in range(p.dots):
                if plane == 0:
                    # A few at a time: a core waits for no more than a dozen lines at once.
                    for each in self.fetches[j * len(self.fetches) // p.dots : (j + 1) * len(self.fetches) // p.dots]:
                        each()
                if len(levels) == j:
                    levels += self._levels(j * p.vectors // p.dots)
                for number, row in enumerate(self.rows):
                    x = self.factors.levels.load([plane, row, runs[j]])
                    sums = totals.setdefault((number, plane), [none] * chains)
                    sums[j % chains] = _dot(p.dot, sums[j % chains], levels[j], x)
        return totals

    def _levels(self, vector: int) -> list[Value]:
        """Load a vector of the group's levels, and unpack it."""
        size = self.p.packing.run_bytes
        loaded = self.factors.weights.load_vector([self.tile, self.levels_at + vector * size], size)
        if self.p.packing.format.bits == 8:
            return [loaded]
        words = loaded.bitcast("i32")
        halves = words, words >> 4
        masked = [half & 0x0F0F0F0F for half in halves]
        return [half.bitcast("i8") for half in masked]

    def _total(self, dots: "_Totals", row: int) -> Value:
        """Return float32: of several planes each sum is fused onto the rounded one of those before it."""
        total: Value | None = None
        for plane in range(self.p.rounded.planes):
            floats = reduce(add, dots[row, plane]).astype("f32", signed=True)
            total = floats if total is None else math_fma(total, float(1 << LOW_BITS), floats)
        assert total is not None
        return total


_Totals = dict[tuple[int, int], list[Value]]
"""int32 sums of several chains, by row and plane."""


def _dot(dot: Dot, before: Value, level: Value, x: Value) -> Value:
    """Return `before` and the products of four levels of each lane with four integers of a row."""
    if dot == "vpdpbusd":
        name, takes = f"llvm.x86.avx512.vpdpbusd.{32 * LANES}", (I32_VECTOR, LEVELS, LEVELS)
        return intrinsic(name, [before, level, x.broadcast().bitcast("i8")], takes, I32_VECTOR)
    words = level.bitcast("i32")
    for number in range(RUN):
        one = (words >> 8 * number) & 255
        signed = (x << 24 - 8 * number).shift_right_signed(24)
        before = before + one * signed.broadcast()
    return before
