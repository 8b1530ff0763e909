"""The integer dot products of x86-64: AVX2, AVX-VNNI and AVX512-VNNI (docs/adr/0069)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from workers.iree.kernels.ir.mlir_types import LANES, Type
from workers.iree.kernels.ir.operations import intrinsic
from workers.iree.kernels.ir.value import Value, constant
from workers.iree.kernels.matmul.integer_dot import ByteShuffle, Int32Sums, RowPairs
from workers.iree.kernels.matmul.packing import DOT_INPUTS

YMM_LANES = 8
"""Lanes of 32 bits of a register without AVX-512."""
_YMM_SHUFFLE = ByteShuffle("llvm.x86.avx2.pshuf.b", Type("i8", DOT_INPUTS * YMM_LANES))
_ZMM_SHUFFLE = ByteShuffle("llvm.x86.avx512.pshuf.b.512", Type("i8", DOT_INPUTS * LANES))


@dataclass(frozen=True, slots=True)
class Vpdpbusd(Int32Sums):
    """AVX512-VNNI, or AVX-VNNI with registers of 256 bits: one instruction a dot.

    Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VPDPBUSD.
    """

    lanes: int
    looped: ClassVar[bool] = True
    begins: ClassVar[bool] = True

    def together(self, rows: int) -> int:
        return LANES // self.lanes

    @property
    def several_tiles(self) -> bool:  # type: ignore[override]
        return self.lanes == LANES

    @property
    def shuffle(self) -> ByteShuffle:  # type: ignore[override]
        return _ZMM_SHUFFLE if self.lanes == LANES else _YMM_SHUFFLE

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
class Vpmaddwd(Int32Sums):
    """AVX2, for levels of 8 bits: both factors as int16, two products summed by `vpmaddwd`.

    `vpmaddubsw` takes the levels as they are, but its sums of int16 saturate beyond 7 bits; with the signs moved from
    one factor to the other, as llama.cpp does, it takes as many instructions.
    """

    lanes: ClassVar[int] = YMM_LANES  # type: ignore[misc]
    pairs: ClassVar[bool] = True
    looped: ClassVar[bool] = True
    begins: ClassVar[bool] = True
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
    """AVX2, for levels of 4 bits: two products summed to int16 by `vpmaddubsw`, eight dots before they are widened, or
    four of levels of FP4.

    The largest sum is 8 * 2 * 15 * 128 = 30,720, or 4 * 2 * 24 * 128 = 24,576.
    """

    narrow_dots: int = 8
    lanes: ClassVar[int] = YMM_LANES
    pairs: ClassVar[bool] = False
    offset: ClassVar[int] = 0
    row_pairs: ClassVar[RowPairs | None] = None
    looped: ClassVar[bool] = True
    begins: ClassVar[bool] = False
    several_tiles: ClassVar[bool] = False
    shuffle: ClassVar[ByteShuffle | None] = _YMM_SHUFFLE
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
