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
from workers.iree.kernels.ir.memory import L1
from workers.iree.kernels.ir.mlir_types import CACHE_LINE, ELEMENTS, LANES
from workers.iree.kernels.ir.operations import math_fma
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.matmul.activation_quantization import LIMB_BITS
from workers.iree.kernels.matmul.fp4 import LEVELS, fp4_levels
from workers.iree.kernels.matmul.integer_dot import RowPairs
from workers.iree.kernels.matmul.packing import DOT_INPUTS
from workers.iree.kernels.matmul.quantized_matmul import QuantizedMatmul, QuantizedOperands

PREFETCH_DISTANCE = 8192
"""Bytes ahead of what is read. The CPU itself looks ahead no further than a page's end."""
MIN_CHAINS = 4
"""Dot products that do not wait for each other, at least."""


@dataclass(frozen=True, slots=True)
class Prefetches:
    """Cache lines of the weights that are read later, from byte `at` of a tile on."""

    operands: QuantizedOperands
    tile: Value
    at: Value
    lines: int
    cache: int = L1

    def line(self, number: Value | int) -> None:
        """Prefetch one of the lines."""
        self.operands.weights.prefetch([self.tile, self.at + number * CACHE_LINE], self.cache)


def quantized_gemm_tile(
    code: Code,
    matmul: QuantizedMatmul,
    operands: QuantizedOperands,
    tiles: Sequence[Value],
    rows: Sequence[Value],
    soon: Callable[[Value], Prefetches],
) -> list[list[Value]]:
    """Return float32 [16] of each of some rows and tiles.

    `soon` returns what to prefetch in the course of a group of activations, whose number it gets.
    """

    def group(number: Value, sums: list[Value]) -> list[Value]:
        at = matmul.level_byte(number)
        return _Group(code, matmul, operands, tiles, rows, number, at, soon(number)).add_to(sums)

    count = len(tiles)
    flat = code.loop(0, matmul.activations.groups, [code.floats(0.0)] * (len(rows) * count), group)
    return [flat[row * count : (row + 1) * count] for row in range(len(rows))]


def prefetch_ahead(
    matmul: QuantizedMatmul, operands: QuantizedOperands, tile: Value, following: Value, group: Value
) -> Prefetches:
    """Prefetch what is read `PREFETCH_DISTANCE` bytes after a group, scales and zeros included; the tile `following` is
    read after this one."""
    packing = matmul.packing
    soon = matmul.level_byte(group) + (PREFETCH_DISTANCE - packing.entry_bytes)
    beyond = soon >= matmul.tile_bytes
    lines = matmul.vectors + packing.entry_bytes // CACHE_LINE
    return Prefetches(operands, beyond.select(following, tile), beyond.select(soon - matmul.tile_bytes, soon), lines)


@dataclass(frozen=True, slots=True)
class _Group:
    """One group of activations of some rows, and its levels in a tile."""

    code: Code
    matmul: QuantizedMatmul
    operands: QuantizedOperands
    tiles: Sequence[Value]
    rows: Sequence[Value]
    number: Value
    levels_at: Value
    """The byte of a tile where its levels begin."""
    prefetches: Prefetches

    def add_to(self, sums: Sequence[Value]) -> list[Value]:
        """Return the sums of each row and tile plus the group's."""
        format, matmul = self.matmul.packing.format, self.matmul
        scales = [self._entries(tile, 0) for tile in self.tiles]
        zeros: list[Value] | None = None
        if format.zero == "middle":
            if not (self._takes_middle or matmul.activations.begins_sums):
                zeros = [self.code.floats(-float(format.middle))] * len(self.tiles)
        else:
            zeros = [self._entries(tile, 1) for tile in self.tiles]
        dots, out = self._dots(), []
        for number, row in enumerate(self.rows):
            row_scale, row_sum = (self.operands.scales.load([at, row, self.number]).broadcast() for at in range(2))
            for tile, scale in enumerate(scales):
                before = sums[number * len(scales) + tile]
                dot = self._total(dots, number, tile)
                both = scale * row_scale
                if zeros is not None and format.zero == "bias":
                    before = math_fma(zeros[tile], row_sum, before)
                elif zeros is not None:
                    dot = math_fma(zeros[tile], row_sum, dot)
                out.append(math_fma(both, dot, before))
        return out

    @property
    def _takes_middle(self) -> bool:
        """The levels that the dots multiply are those minus the middle, as the format has it. The sums are no larger
        than float32 has integers if a row has one limb."""
        format, limbs = self.matmul.packing.format, self.matmul.activations.limbs
        return limbs == 1 and format.zero == "middle" and self.matmul.dot.offset == format.middle

    def _entries(self, tile: Value, table: int) -> Value:
        """Return float32: the scales or zeros of each lane for the group."""
        packing, at = self.matmul.packing, self.matmul.entry_byte(table, self.number)
        loaded = self.operands.weights.load_vector([tile, at], packing.scale_bytes)
        return loaded.bitcast(ELEMENTS[packing.format.scales]).astype("f32")

    def _dots(self) -> "_Totals":
        """Multiply the group's levels by all rows' integers.

        The next product waits for none of the last few: what waits fills the CPU's scheduler. Sums of integers are
        exact in any order.
        """
        totals: _Totals = {}
        together = self.matmul.dot.together(len(self.rows)) * len(self.tiles)
        for first in range(0, self._tile_parts * len(self.tiles), together):
            parts, levels = range(first, first + together), list[_Levels]()
            for limb in range(self.matmul.activations.limbs):
                if self.matmul.dot.looped:
                    sums = self._looped_limb(limb, parts)
                elif self.matmul.dot.row_pairs is not None and len(self.rows) > 1:
                    sums = self._paired_limb(limb, self.matmul.dot.row_pairs, levels)
                else:
                    sums = self._limb(limb, parts, levels)
                for (row, _), total in sums.items():
                    totals.setdefault((row, limb), []).append(total)
        if self.matmul.dot.offset and not self._takes_middle:
            for (row, limb), parts_of_row in totals.items():
                missing = self._sum_of_row(limb, row) * self.matmul.dot.offset
                totals[row, limb] = [part + missing.broadcast(part.type.lanes) for part in parts_of_row]
        return totals

    def _sum_of_row(self, limb: int, row: int) -> Value:
        """Return the sum of a row's integers in the group, int32."""
        words = self.operands.levels.load_vector([limb, self.rows[row], self._words_at(0)[0]], self.matmul.dots)
        # Not as int8 that are extended: IREE 3.13 drops the sign of those that were bitcast.
        shifts = (24 - 8 * number for number in range(DOT_INPUTS))
        return reduce(add, ((words << shift).shift_right_signed(24) for shift in shifts)).reduce("add")

    def _looped_limb(self, limb: int, parts: range) -> dict[tuple[int, int], Value]:
        """Like `_limb`, as a loop over vectors of levels.

        LLVM would sum the products of a group in the order of a tree, row after row, and load the levels for each.
        """
        dot, matmul = self.matmul.dot, self.matmul
        rows = [(number, part) for number in range(len(self.rows)) for part in parts]
        per_vector = matmul.dots // matmul.vectors
        each = (dot.narrow_dots or matmul.dots) // per_vector
        totals: list[Value] = []
        lines = self.prefetches.lines
        if limb == 0 and parts.start == 0:
            for line in range(matmul.vectors, lines):
                self.prefetches.line(line)
        for start in range(0, matmul.vectors, each):

            def vector(number: Value, sums: list[Value]) -> list[Value]:
                if limb == 0 and parts.start == 0:
                    self.prefetches.line(number if lines >= matmul.vectors else number * lines // matmul.vectors)
                for run, levels in enumerate(self._levels(number, parts)):
                    at = self._words_at(number * per_vector + run)
                    words = [self._words(limb, row, at) for row in range(len(self.rows))]
                    sums = [
                        dot.add(total, levels[part], words[row]) for total, (row, part) in zip(sums, rows, strict=True)
                    ]
                return sums

            begin = [self._begin(limb, row) for row, _ in rows]
            sums = self.code.loop(start, min(start + each, matmul.vectors), begin, vector)
            wide = [dot.widen(total) for total in sums]
            totals = [a + b for a, b in zip(totals, wide, strict=True)] if totals else wide
        return dict(zip(rows, totals, strict=True))

    def _limb(self, limb: int, parts: range, levels: "list[_Levels]") -> dict[tuple[int, int], Value]:
        """Return int32 sums by row and part of the tile, for one limb of the rows. The first limb fills `levels`."""
        dot, dots = self.matmul.dot, self.matmul.dots
        none = self.code.constant(0, dot.sum_type)
        rows = [(number, part) for number in range(len(self.rows)) for part in parts]
        chains = max(1, MIN_CHAINS // len(rows))
        sums = {(row, part): [self._begin(limb, row), *[none] * (chains - 1)] for row, part in rows}
        for j in range(dots):
            if limb == 0 and parts.start == 0:
                self._prefetch(j)
            if len(levels) == j:
                levels += self._levels(j * self.matmul.vectors // dots, parts)
            at_words = self._words_at(j)
            for number in range(len(self.rows)):
                words = self._words(limb, number, at_words)
                for part in parts:
                    chain = sums[number, part]
                    chain[j % chains] = dot.add(chain[j % chains], levels[j][part], words)
        return {at: reduce(add, each) for at, each in sums.items()}

    def _paired_limb(self, limb: int, pairs: RowPairs, levels: "list[_Levels]") -> dict[tuple[int, int], Value]:
        """Like `_limb`, for two rows at a time and a last one alone."""
        dot, whole, count = self.matmul.dot, 0, len(self.rows)
        sums = [self.code.constant(0, pairs.sum_type)] * (count // 2)
        alone = self.code.constant(0, dot.sum_type)
        for j in range(0, self.matmul.dots, 2):
            if limb == 0:
                self._prefetch(j)
                self._prefetch(j + 1)
            while len(levels) < j + 2:
                levels += self._levels(len(levels) * self.matmul.vectors // self.matmul.dots, range(1))
            low, high = (levels[number][whole] for number in (j, j + 1))
            right, at = pairs.operands(*low, *high), self._words_at(j)
            words = [self.operands.levels.load_vector([limb, row, *at], 2) for row in self.rows]
            for number, total in enumerate(sums):
                sums[number] = pairs.add(total, right, words[2 * number : 2 * number + 2])
            if count % 2:
                for number, each in enumerate((low, high)):
                    alone = dot.add(alone, each, [words[-1].lane(number)])
        rows = [row for total in sums for row in pairs.rows(total)] + [alone] * (count % 2)
        return {(number, whole): total for number, total in enumerate(rows)}

    def _begin(self, limb: int, row: int) -> Value:
        """Return what a row's integer sums begin with."""
        lanes = self.matmul.dot.sum_type.lanes
        if not self.matmul.activations.begins_sums:
            return self.code.constant(0, self.matmul.dot.sum_type)
        return self.operands.scales.load([1, self.rows[row], self.number]).view("i32").broadcast(lanes)

    def _prefetch(self, dot: int) -> None:
        """Prefetch a few lines at a time: a core waits for no more than a dozen at once."""
        dots, lines = self.matmul.dots, self.prefetches.lines
        for line in range(dot * lines // dots, (dot + 1) * lines // dots):
            self.prefetches.line(line)

    def _words_at(self, dot: Value | int) -> list[Value]:
        """Return where the integers of a row are for a dot of the group."""
        count = self.matmul.activations.words
        first = (self.number * self.matmul.dots + dot) * count
        return [first + word for word in range(count)]

    def _words(self, limb: int, row: int, words: Sequence[Value]) -> list[Value]:
        """Load the integers of a row."""
        return [self.operands.levels.load([limb, self.rows[row], at]) for at in words]

    def _levels(self, vector: Value | int, parts: range) -> "list[_Levels]":
        """Load some parts of a vector of the group's levels, and unpack them: one or two dots."""
        dot, size = self.matmul.dot, self.matmul.packing.vector_bytes
        part_bytes = DOT_INPUTS * dot.lanes
        unpacked: dict[int, list[Value]] = {}
        for part in parts:
            tile, inside = divmod(part, self._tile_parts)
            at = self.levels_at + (vector * size + inside * part_bytes)
            unpacked[part] = self._unpack(self.operands.weights.load_vector([self.tiles[tile], at], part_bytes))
        return [
            {part: dot.operands(values[number]) for part, values in unpacked.items()}
            for number in range(8 // self.matmul.packing.format.bits)
        ]

    def _unpack(self, loaded: Value) -> list[Value]:
        if self.matmul.packing.format.bits == 8:
            return [loaded]
        words = loaded.bitcast("i32")
        halves = words, words >> 4
        masked = [half & 0x0F0F0F0F for half in halves]
        if not self.matmul.packing.format.e2m1:
            return [half.bitcast("i8") for half in masked]
        shuffle = self.matmul.dot.shuffle
        if shuffle is None:
            return [fp4_levels(half).bitcast("i8") for half in masked]
        return [shuffle.look_up(LEVELS, half.bitcast("i8")) for half in masked]

    @property
    def _tile_parts(self) -> int:
        """Registers of sums of a tile."""
        return LANES // self.matmul.dot.lanes

    def _total(self, dots: "_Totals", row: int, tile: int) -> Value:
        """Return float32: of several limbs each sum is fused onto the rounded one of those before it."""
        total: Value | None = None
        first = tile * self._tile_parts
        for limb in range(self.matmul.activations.limbs):
            parts = dots[row, limb][first : first + self._tile_parts]
            floats = reduce(Value.concatenate, (part.astype("f32", signed=True) for part in parts))
            total = floats if total is None else math_fma(total, float(1 << LIMB_BITS), floats)
        assert total is not None
        return total


_Totals = dict[tuple[int, int], list[Value]]
"""int32 sums by row and limb, one for each part of the tile."""
_Levels = dict[int, list[Value]]
"""The levels of a dot, by the part of the tile: see `IntegerDot.operands`."""
