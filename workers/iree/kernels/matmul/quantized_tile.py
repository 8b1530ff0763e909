"""A tile of weights of few bits times a block of rows: integer dot products of levels with rounded activations.

The dot products of a group are exact integers, and the groups' sums are added up in float32 one group after the other:
a row's result is the same to the bit whatever rows are computed beside it.

A level never leaves the vector register that it was unpacked in.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

from workers.iree.kernels.ir.builder import FLOATS, LANES, LINE, Code
from workers.iree.kernels.matmul.activation_quantization import INTS, LOW_BITS
from workers.iree.kernels.matmul.packing import RUN
from workers.iree.kernels.matmul.quantized_product import Factors, Product

PREFETCH = 8192
"""Bytes ahead of what is read. The CPU itself looks ahead no further than a page's end."""
CHAINS = 4
"""Products that do not wait for each other, at least."""
ELEMENTS = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}
LEVELS = f"vector<{RUN * LANES}xi8>"


Fetches = list[Callable[[], None]]
"""Each writes code that fetches a line of what is read later."""


def tile_sums(
    code: Code, p: Product, factors: Factors, tile: str, rows: list[str], soon: Callable[[str, str], Fetches]
) -> list[str]:
    """float32 [16] of each of some rows.

    `soon` says what to fetch in the course of a group of activations: it is called with the group's number and the
    byte of the tile at which its levels begin.
    """

    def turn(group: str, sums: list[str]) -> list[str]:
        at = code.mul(group, p.vectors * p.packing.run_bytes)
        return _Group(code, p, factors, tile, rows, group, at, soon(group, at)).added(sums)

    start = [(code.floats(0.0), FLOATS)] * len(rows)
    return code.loop(code.index(0), code.index(p.rounded.groups), 1, start, turn)


def fetch_straight(code: Code, p: Product, factors: Factors, tile: str, at: str) -> Fetches:
    """What is read `PREFETCH` bytes after a group's levels, which begin at byte `at` of a tile; behind its end lies
    the next one."""
    return fetch(code, factors, tile, code.add(at, PREFETCH), p.vectors)


def fetch(code: Code, factors: Factors, tile: str, at: str, lines: int) -> Fetches:
    """Lines of memory from byte `at` of a tile on, which may lie behind its end."""

    def one(line: int) -> Callable[[], None]:
        return lambda: code.prefetch(factors.weights, [tile, code.add(at, line * LINE)])

    return [one(line) for line in range(lines)]


@dataclass(frozen=True, slots=True)
class _Group:
    """One group of activations of some rows, and its levels in a tile."""

    code: Code
    p: Product
    factors: Factors
    tile: str
    rows: list[str]
    number: str
    levels_at: str
    """The byte of the tile where its levels begin."""
    fetches: Fetches

    def added(self, sums: list[str]) -> list[str]:
        """The sums of each row with the group's."""
        code, format, inputs = self.code, self.p.packing.format, self.p.rounded.inputs
        group = code.div(self.number, format.group // self.p.rounded.group)
        start = self.p.packing.level_bytes(inputs)
        scale = self._entries(start, group)
        if format.zero == "middle":
            zero = code.floats(-float(format.middle))
        else:
            zero = self._entries(start + self.p.packing.scale_bytes(inputs), group)
        dots, out = self._dots(), []
        for number, (row, before) in enumerate(zip(self.rows, sums, strict=True)):
            row_scale, row_sum = (
                code.spread(code.extract(self.factors.sums, [code.index(which), row, self.number])) for which in (0, 1)
            )
            dot = self._total(dots, number)
            both = code.let(f"arith.mulf {scale}, {row_scale} : {FLOATS}")
            if format.zero == "bias":
                before = code.let(f"math.fma {zero}, {row_sum}, {before} : {FLOATS}")
            else:
                dot = code.let(f"math.fma {zero}, {row_sum}, {dot} : {FLOATS}")
            out.append(code.let(f"math.fma {both}, {dot}, {before} : {FLOATS}"))
        return out

    def _entries(self, start: int, group: str) -> str:
        """float32: one number of each lane for the group from the tile's table at byte `start`."""
        code, packing = self.code, self.p.packing
        kind, size = ELEMENTS[packing.format.scales], packing.scale_bytes(packing.format.group)
        at = code.add(code.mul(group, size), start)
        loaded, typed = code.read(self.factors.weights, [self.tile, at], size), f"vector<{LANES}x{kind}>"
        narrow = code.let(f"vector.bitcast {loaded} : vector<{size}xi8> to {typed}")
        return narrow if kind == "f32" else code.let(f"arith.extf {narrow} : {typed} to {FLOATS}")

    def _dots(self) -> "_Totals":
        """The group's levels times all rows' integers.

        The next product waits for no other of the last few: what waits fills the CPU's scheduler. Sums of integers are
        exact in any order.
        """
        code, p, levels = self.code, self.p, list[str]()
        none = code.constant(f"dense<0> : {INTS}")
        chains = max(1, CHAINS // len(self.rows))
        totals: _Totals = {}
        run = code.mul(self.number, p.dots)
        runs = [code.add(run, j) for j in range(p.dots)]
        for plane in range(p.rounded.planes):
            for j in range(p.dots):
                if plane == 0:
                    # A few at a time: a core waits for no more than a dozen lines at once.
                    for each in self.fetches[j * len(self.fetches) // p.dots : (j + 1) * len(self.fetches) // p.dots]:
                        each()
                if len(levels) == j:
                    levels += self._levels(j * p.vectors // p.dots)
                for number, row in enumerate(self.rows):
                    x = code.extract(self.factors.levels, [code.index(plane), row, runs[j]])
                    sums = totals.setdefault((number, plane), [none] * chains)
                    sums[j % chains] = _dot(code, p, sums[j % chains], levels[j], x)
        return totals

    def _levels(self, vector: int) -> list[str]:
        """Load a vector of the group's levels, and unpack it."""
        code, size = self.code, self.p.packing.run_bytes
        loaded = code.read(self.factors.weights, [self.tile, code.add(self.levels_at, vector * size)], size)
        if self.p.packing.format.bits == 8:
            return [loaded]
        words, mask, four = (
            code.let(f"vector.bitcast {loaded} : {LEVELS} to {INTS}"),
            code.constant(f"dense<{0x0F0F0F0F}> : {INTS}"),
            code.constant(f"dense<4> : {INTS}"),
        )
        halves = (words, code.let(f"arith.shrui {words}, {four} : {INTS}"))
        masked = [code.let(f"arith.andi {half}, {mask} : {INTS}") for half in halves]
        return [code.let(f"vector.bitcast {half} : {INTS} to {LEVELS}") for half in masked]

    def _total(self, dots: "_Totals", row: int) -> str:
        """float32: of several planes each sum is fused onto the rounded one of those before it."""
        code, total = self.code, ""
        unit = code.floats(1 << LOW_BITS)
        for plane in range(self.p.rounded.planes):
            ints = reduce(lambda a, b: code.let(f"arith.addi {a}, {b} : {INTS}"), dots[row, plane])
            floats = code.let(f"arith.sitofp {ints} : {INTS} to {FLOATS}")
            total = code.let(f"math.fma {total}, {unit}, {floats} : {FLOATS}") if total else floats
        return total


_Totals = dict[tuple[int, int], list[str]]
"""int32 sums of several chains, by row and plane."""


def _dot(code: Code, p: Product, before: str, level: str, x: str) -> str:
    """`before` and the products of four levels of each lane with four integers of a row."""
    if p.dot == "vpdpbusd":
        runs = code.let(f"vector.bitcast {code.spread(x, 'i32')} : {INTS} to {LEVELS}")
        return code.let(
            f'llvm.call_intrinsic "llvm.x86.avx512.vpdpbusd.{32 * LANES}"({before}, {level}, {runs})'
            f" : ({INTS}, {LEVELS}, {LEVELS}) -> {INTS}"
        )
    words, byte = code.let(f"vector.bitcast {level} : {LEVELS} to {INTS}"), code.constant(f"dense<255> : {INTS}")
    for number in range(RUN):
        moved = code.let(f"arith.shrui {words}, {code.constant(f'dense<{8 * number}> : {INTS}')} : {INTS}")
        one = code.let(f"arith.andi {moved}, {byte} : {INTS}")
        top = code.let(f"arith.shli {x}, {code.constant(f'{24 - 8 * number} : i32')} : i32")
        signed = code.let(f"arith.shrsi {top}, {code.constant('24 : i32')} : i32")
        times = code.let(f"arith.muli {one}, {code.spread(signed, 'i32')} : {INTS}")
        before = code.let(f"arith.addi {before}, {times} : {INTS}")
    return before
