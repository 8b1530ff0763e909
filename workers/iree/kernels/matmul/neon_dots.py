"""The integer dot products of AArch64: NEON alone, with `sdot` (FEAT_DotProd), and with FEAT_I8MM.

Arm Architecture Reference Manual for A-profile, chapter C7. Registers have 128 bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from workers.iree.kernels.ir.mlir_types import LANES, Type
from workers.iree.kernels.ir.operations import intrinsic_by_register
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.matmul.integer_dot import ByteShuffle, Int32Sums, RowPairs
from workers.iree.kernels.matmul.packing import DOT_INPUTS

BYTES, HALF_BYTES = Type("i8", 16), Type("i8", 8)
SHORTS, WORDS = Type("i16", 8), Type("i32", 4)
SIGN = 128
"""Unsigned levels of 8 bits minus this are signed ones."""
_TBL = ByteShuffle("llvm.aarch64.neon.tbl1.v16i8", BYTES)


def _signed(levels: Value) -> Value:
    return levels ^ -SIGN


@dataclass(frozen=True, slots=True)
class _Dot(Int32Sums):
    """One instruction for four inputs of four outputs."""

    lanes: ClassVar[int] = LANES  # type: ignore[misc]
    max_height: ClassVar[int] = 4
    shuffle: ClassVar[ByteShuffle | None] = _TBL
    instruction: ClassVar[str]

    def together(self, rows: int) -> int:
        return 1

    def add(self, total: Value, levels: Sequence[Value], words: Sequence[Value]) -> Value:
        (level,), (word,) = levels, words
        name, takes = f"llvm.aarch64.neon.{self.instruction}.v4i32.v16i8", (WORDS, BYTES, BYTES)
        left = word.broadcast(WORDS.lanes).bitcast("i8")
        return intrinsic_by_register(name, [total, level, left], takes, WORDS, total.type)


@dataclass(frozen=True, slots=True)
class Sdot(_Dot):
    """FEAT_DotProd, for levels of 4 bits, which have no sign either way."""

    instruction: ClassVar[str] = "sdot"


@dataclass(frozen=True, slots=True)
class SdotOffset(Sdot):
    """FEAT_DotProd, for levels of 8 bits: the instruction takes both factors with a sign."""

    offset: ClassVar[int] = SIGN

    def operands(self, levels: Value) -> list[Value]:
        return [_signed(levels)]


@dataclass(frozen=True, slots=True)
class UsmmlaPairs:
    """FEAT_I8MM: `usmmla` multiplies eight inputs of two outputs by those of two rows, twice as many as `usdot`."""

    @property
    def sum_type(self) -> Type:
        return Type("i32", 2 * LANES)

    def operands(self, low: Value, high: Value) -> Value:
        both = [each.bitcast("i32") for each in (low, high)]
        order = [lane + half * LANES for lane in range(LANES) for half in range(2)]
        return both[0].concatenate(both[1]).shuffle(order).bitcast("i8")

    def add(self, total: Value, levels: Value, words: Sequence[Value]) -> Value:
        takes = (WORDS, BYTES, BYTES)
        left = words[0].concatenate(words[1]).bitcast("i8")
        name = "llvm.aarch64.neon.usmmla.v4i32.v16i8"
        return intrinsic_by_register(name, [total, levels, left], takes, WORDS, total.type)

    def rows(self, total: Value) -> tuple[Value, Value]:
        first, second = (total.shuffle(range(row, 2 * LANES, 2)) for row in range(2))
        return first, second


@dataclass(frozen=True, slots=True)
class Usdot(_Dot):
    """FEAT_I8MM: levels without a sign, of a single row by `usdot`, of two rows by `usmmla`."""

    instruction: ClassVar[str] = "usdot"
    row_pairs: ClassVar[RowPairs | None] = UsmmlaPairs()


@dataclass(frozen=True, slots=True)
class SmullSadalp(Int32Sums):
    """NEON alone, for levels of 8 bits: products of int16 are added in pairs, then `sadalp` adds pairs to the sums.

    A sum of two is at most 2 * 128 * 127 = 32,512: levels are signed here, and activations at least -127.
    """

    lanes: ClassVar[int] = LANES  # type: ignore[misc]
    offset: ClassVar[int] = SIGN
    looped: ClassVar[bool] = True
    max_height: ClassVar[int] = 5

    def together(self, rows: int) -> int:
        return 1

    def operands(self, levels: Value) -> list[Value]:
        return [_signed(levels)]

    def add(self, total: Value, levels: Sequence[Value], words: Sequence[Value]) -> Value:
        (level,), (word,) = levels, words
        products = _multiply(level, word)
        even, odd = (products.shuffle(range(first, DOT_INPUTS * LANES, 2)) for first in range(2))
        return total + _add_pairs(even + odd)


@dataclass(frozen=True, slots=True)
class Smlal:
    """NEON alone, for levels of 4 bits: `smlal` adds products to sums of int16 for each input, four for each output.

    The largest sum of a group of 64 inputs is 16 * 15 * 128 = 30,720, and of 32 inputs in FP4 8 * 24 * 128 = 24,576.
    """

    narrow_dots: int = 16
    lanes: ClassVar[int] = 8
    pairs: ClassVar[bool] = False
    offset: ClassVar[int] = 0
    row_pairs: ClassVar[RowPairs | None] = None
    looped: ClassVar[bool] = True
    begins: ClassVar[bool] = False
    several_tiles: ClassVar[bool] = False
    shuffle: ClassVar[ByteShuffle | None] = _TBL
    max_height: ClassVar[int] = 5

    def together(self, rows: int) -> int:
        return 2 if rows <= 2 else 1

    @property
    def sum_type(self) -> Type:
        return Type("i16", DOT_INPUTS * self.lanes)

    def operands(self, levels: Value) -> list[Value]:
        return [levels]

    def add(self, total: Value, levels: Sequence[Value], words: Sequence[Value]) -> Value:
        (level,), (word,) = levels, words
        return total + _multiply(level, word)

    def widen(self, total: Value) -> Value:
        pairs = _add_pairs(total)
        even, odd = (pairs.shuffle(range(first, 2 * self.lanes, 2)) for first in range(2))
        return even + odd


def _multiply(level: Value, word: Value) -> Value:
    """Return the products of each level and its input of a row, int16, by `smull`."""
    left, target = word.broadcast(2).bitcast("i8"), level.type.of("i16")
    takes = (HALF_BYTES, HALF_BYTES)
    return intrinsic_by_register("llvm.aarch64.neon.smull.v8i16", [level, left], takes, SHORTS, target)


def _add_pairs(values: Value) -> Value:
    """Return the sums of neighbours, int32, by `saddlp`, which becomes `sadalp` where it is added to a sum."""
    target = Type("i32", values.type.lanes // 2)
    return intrinsic_by_register("llvm.aarch64.neon.saddlp.v4i32.v8i16", [values], [SHORTS], WORDS, target)
