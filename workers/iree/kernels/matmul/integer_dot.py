"""The instructions of each kind of CPU that multiply quantized weights by quantized rows.

A product takes a *dot* at a time: the levels of `DOT_INPUTS` neighbouring inputs, 8 bits or 4 and unsigned, of as many
outputs as a register has lanes, times the integers of a row for these inputs, signed and of 8 bits. All sums are exact,
so every CPU computes the same ones.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import ClassVar, Protocol

from workers.iree.kernels.ir.mlir_types import LANES, Type
from workers.iree.kernels.ir.operations import intrinsic
from workers.iree.kernels.ir.value import Value, constant
from workers.iree.kernels.matmul.packing import DOT_INPUTS

YMM_LANES = 8
"""Lanes of 32 bits of a register without AVX-512."""


class IntegerDot(Protocol):
    """The dot products of one kind of CPU, for levels of one width."""

    @property
    def lanes(self) -> int:
        """Outputs of a register of sums."""

    def together(self, rows: int) -> int:
        """Return how many registers of sums are summed side by side for each row of a block of so many; the others of a
        tile follow after a group."""

    @property
    def max_height(self) -> int:
        """Rows of a block whose sums stay in registers beside what they are made of."""

    @property
    def pairs(self) -> bool:
        """A word of a row holds two integers as int16, those of even inputs before those of odd ones, instead of four
        as int8."""

    @property
    def looped(self) -> bool:
        """Dots are a loop in the kernel; otherwise their code is repeated for each dot of a group."""

    @property
    def narrow_dots(self) -> int:
        """Dots that a sum of int16 holds before `widen` must make it int32, in a loop; 0 where sums are int32."""

    @property
    def sum_type(self) -> Type:
        """The type of sums."""

    def operands(self, levels: Value) -> list[Value]:
        """Return a dot's levels, int8 [4 * lanes], in the form that is multiplied by every row."""

    def add(self, total: Value, levels: Sequence[Value], words: Sequence[Value]) -> Value:
        """Return sums plus the products of a dot: `words` are those of the row, int32."""

    def widen(self, total: Value) -> Value:
        """Return sums as int32 [lanes]."""


class _Int32Sums:
    """Sums that need not be widened."""

    __slots__ = ()
    lanes: int
    pairs: ClassVar[bool] = False
    looped: ClassVar[bool] = False
    narrow_dots: ClassVar[int] = 0

    @property
    def sum_type(self) -> Type:
        return Type("i32", self.lanes)

    def operands(self, levels: Value) -> list[Value]:
        return [levels]

    def widen(self, total: Value) -> Value:
        return total


@dataclass(frozen=True, slots=True)
class Vpdpbusd(_Int32Sums):
    """AVX512-VNNI, or AVX-VNNI with registers of 256 bits: one instruction a dot.

    Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VPDPBUSD.
    """

    lanes: int

    def together(self, rows: int) -> int:
        return LANES // self.lanes

    @property
    def max_height(self) -> int:
        return 12 if self.lanes == LANES else 6

    def add(self, total: Value, levels: Sequence[Value], words: Sequence[Value]) -> Value:
        (level,), (word,), taken = levels, words, Type("i8", DOT_INPUTS * self.lanes)
        name, takes = f"llvm.x86.avx512.vpdpbusd.{32 * self.lanes}", (total.type, taken, taken)
        return intrinsic(name, [total, level, word.broadcast(self.lanes).bitcast("i8")], takes, total.type)


def _halves_together(rows: int) -> int:
    """Return how many halves of a tile are summed at once: both where registers suffice, as they share the loop and the
    activations."""
    return 2 if rows <= 2 else 1


@dataclass(frozen=True, slots=True)
class Vpmaddwd(_Int32Sums):
    """AVX2, for levels of 8 bits: both factors as int16, two products summed by `vpmaddwd`.

    `vpmaddubsw` takes the levels as they are, but its sums of int16 saturate beyond 7 bits; with the signs moved from
    one factor to the other, as llama.cpp does, it takes as many instructions.
    """

    lanes: ClassVar[int] = YMM_LANES  # type: ignore[misc]
    pairs: ClassVar[bool] = True
    looped: ClassVar[bool] = True
    max_height: ClassVar[int] = 12

    def together(self, rows: int) -> int:
        return _halves_together(rows)

    def operands(self, levels: Value) -> list[Value]:
        words = levels.bitcast("i16")
        return [words & 255, words >> 8]

    def add(self, total: Value, levels: Sequence[Value], words: Sequence[Value]) -> Value:
        takes = (Type("i16", 2 * self.lanes),) * 2
        even, odd = (
            intrinsic("llvm.x86.avx2.pmadd.wd", [level, word.broadcast(self.lanes).bitcast("i16")], takes, total.type)
            for level, word in zip(levels, words, strict=True)
        )
        return total + (even + odd)


@dataclass(frozen=True, slots=True)
class Vpmaddubsw:
    """AVX2, for levels of 4 bits: two products summed to int16 by `vpmaddubsw`, eight dots before they are widened.

    The largest sum is 8 * 2 * 15 * 128 = 30,720.
    """

    lanes: ClassVar[int] = YMM_LANES
    pairs: ClassVar[bool] = False
    looped: ClassVar[bool] = True
    narrow_dots: ClassVar[int] = 8
    max_height: ClassVar[int] = 8

    def together(self, rows: int) -> int:
        return _halves_together(rows)

    @property
    def sum_type(self) -> Type:
        return Type("i16", 2 * self.lanes)

    def operands(self, levels: Value) -> list[Value]:
        return [levels]

    def add(self, total: Value, levels: Sequence[Value], words: Sequence[Value]) -> Value:
        (level,), (word,) = levels, words
        name, takes = "llvm.x86.avx2.pmadd.ub.sw", (Type("i8", DOT_INPUTS * self.lanes),) * 2
        return total + intrinsic(name, [level, word.broadcast(self.lanes).bitcast("i8")], takes, total.type)

    def widen(self, total: Value) -> Value:
        ones = constant(total.code, 1, total.type)
        return intrinsic("llvm.x86.avx2.pmadd.wd", [total, ones], (total.type, total.type), Type("i32", self.lanes))


@dataclass(frozen=True, slots=True)
class PlainDot(_Int32Sums):
    """Any CPU: multiplications of int32, which the compiler chooses instructions for."""

    lanes: ClassVar[int] = LANES  # type: ignore[misc]
    max_height: ClassVar[int] = 8

    def together(self, rows: int) -> int:
        return 1

    def add(self, total: Value, levels: Sequence[Value], words: Sequence[Value]) -> Value:
        (level,), (word,) = levels, words
        four = level.bitcast("i32")
        for number in range(DOT_INPUTS):
            one = (four >> 8 * number) & 255
            signed = (word << 24 - 8 * number).shift_right_signed(24)
            total = total + one * signed.broadcast()
        return total


@dataclass(frozen=True, slots=True)
class IntegerDots:
    """The dot products of one kind of CPU, by the bits of a level."""

    of_8_bits: IntegerDot
    of_4_bits: IntegerDot

    def of(self, bits: int) -> IntegerDot:
        return self.of_4_bits if bits == 4 else self.of_8_bits


PLAIN_DOTS = IntegerDots(PlainDot(), PlainDot())


def choose_integer_dots(features: AbstractSet[str]) -> IntegerDots:
    """Return the dot products of a CPU with `features` (LLVM's names)."""
    if "avx512vnni" in features:
        return IntegerDots(Vpdpbusd(LANES), Vpdpbusd(LANES))
    if "avxvnni" in features:
        return IntegerDots(Vpdpbusd(YMM_LANES), Vpdpbusd(YMM_LANES))
    if "avx2" in features:
        return IntegerDots(Vpmaddwd(), Vpmaddubsw())
    return PLAIN_DOTS
