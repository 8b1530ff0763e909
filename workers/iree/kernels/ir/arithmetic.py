"""The arithmetic of each kind of CPU: the instructions by which kernels multiply and sum, with their operand layouts.

A product runs along its inner dimension in *steps* of `k` neighbours. Its right operand is packed so that one load
gets a step for 16 outputs. Its left operand is [rows, words] of int32: a packed word holds the `per_word` neighbours
that one instruction sums, so a step takes k / per_word of them. Every output has one sum, to which the steps are added
in rising order, whatever the number of rows.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import ClassVar, Protocol

from workers.iree.kernels.ir.memory import Index, Memory
from workers.iree.kernels.ir.mlir_types import ELEMENTS, F32_VECTOR, LANES, Type
from workers.iree.kernels.ir.operations import fma, intrinsic, intrinsic_by_register
from workers.iree.kernels.ir.value import Value

ROW_PADDING = LANES
"""Words after each row of a left operand: rows a power of two apart would fall into the same cache lines."""


class Arithmetic(Protocol):
    """The arithmetic of one CPU for weights of one type."""

    @property
    def element(self) -> str:
        """MLIR's type of weights and KV cache."""

    @property
    def k(self) -> int:
        """Neighbours of a step."""

    @property
    def per_word(self) -> int:
        """Neighbours in a packed word of the left operand."""

    @property
    def accumulators(self) -> int:
        """Sums that the vector registers hold beside what is multiplied."""

    @property
    def prefetches_in_steps(self) -> bool:
        """Weights that few rows are multiplied by are prefetched to L2 first, and to L1 shortly before their use."""

    def load(self, source: Memory, at: Sequence[Index]) -> list[Value]:
        """Load the right operand of a step for 16 outputs, a part for each word; `at` ends with an element's offset."""

    def load_part(self, source: Memory, at: Sequence[Index], part: int) -> Value:
        """Load one of `load`'s parts on its own, so that no register stays live for another part."""

    def broadcast(self, word: Value) -> Value:
        """Return the left operand: a packed word, int32, for every output."""

    def dot(self, total: Value, right: Value, left: Value) -> Value:
        """Return `total` plus the product, float32 [16]."""

    def pack(self, floats: Value) -> Value:
        """Pack float32 [n] into words, int32 [n / per_word]."""

    def unpack(self, words: Value) -> Value:
        """Unpack words, int32 [16 / per_word], into float32 [16]."""

    def round(self, floats: Value) -> Value:
        """Round float32 [n] to elements [n], as `pack` rounds them."""

    def widen(self, elements: Value) -> Value:
        """Return the float32 values of elements."""


class _Bf16Pairs:
    """Left operands of pairs of bfloat16, which one instruction multiplies by pairs of weights and sums."""

    __slots__ = ()
    element: ClassVar[str] = "bf16"
    k: ClassVar[int] = 2
    per_word: ClassVar[int] = 2

    def load(self, source: Memory, at: Sequence[Index]) -> list[Value]:
        return [source.load_vector(at, 2 * LANES)]

    def load_part(self, source: Memory, at: Sequence[Index], part: int) -> Value:
        return self.load(source, at)[part]

    def pack(self, floats: Value) -> Value:
        return self.round(floats).bitcast("i32")

    def unpack(self, words: Value) -> Value:
        return self.widen(words.bitcast("bf16"))

    def round(self, floats: Value) -> Value:
        return floats.astype("bf16")

    def widen(self, elements: Value) -> Value:
        return elements.astype("f32")


@dataclass(frozen=True, slots=True)
class Bf16Dot(_Bf16Pairs):
    """bfloat16 on AVX512-BF16: `vdpbf16ps` adds two products to a float32, the second neighbour's first.

    Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VDPBF16PS.
    """

    accumulators: ClassVar[int] = 16
    prefetches_in_steps: ClassVar[bool] = False  # Zen 5 reads faster without

    def broadcast(self, word: Value) -> Value:
        return word.broadcast().bitcast("bf16")

    def dot(self, total: Value, right: Value, left: Value) -> Value:
        pairs = Type("bf16", 2 * LANES)
        takes = (F32_VECTOR, pairs, pairs)
        return intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", [total, right, left], takes, F32_VECTOR)

    def round(self, floats: Value) -> Value:
        if floats.type != F32_VECTOR:
            return floats.astype("bf16")
        return intrinsic("llvm.x86.avx512bf16.cvtneps2bf16.512", [floats], [F32_VECTOR], Type("bf16", LANES))


@dataclass(frozen=True, slots=True)
class Bfdot(_Bf16Pairs):
    """bfloat16 on AArch64 with FEAT_BF16: `bfdot` adds the sum of two products to a float32.

    Products and sums are rounded to odd, and denormal numbers are zeros. Arm Architecture Reference Manual for
    A-profile, BFDOT (vector).
    """

    accumulators: ClassVar[int] = 4
    prefetches_in_steps: ClassVar[bool] = True

    def broadcast(self, word: Value) -> Value:
        return word.broadcast(4).bitcast("bf16")

    def dot(self, total: Value, right: Value, left: Value) -> Value:
        sums, pairs = Type("f32", 4), Type("bf16", 8)
        name, takes = "llvm.aarch64.neon.bfdot.v4f32.v8bf16", (sums, pairs, pairs)
        return intrinsic_by_register(name, [total, right, left], takes, sums, F32_VECTOR)


class _FloatOperands:
    """Left operands that stay float32, so that only weights and KV cache are rounded to the element."""

    __slots__ = ()
    element: str
    prefetches_in_steps: ClassVar[bool] = True

    def broadcast(self, word: Value) -> Value:
        return word.view("f32").broadcast()

    def dot(self, total: Value, right: Value, left: Value) -> Value:
        return fma(right, left, total)

    def pack(self, floats: Value) -> Value:
        return floats.bitcast("i32")

    def unpack(self, words: Value) -> Value:
        return words.bitcast("f32")

    def round(self, floats: Value) -> Value:
        return floats.astype(self.element)

    def widen(self, elements: Value) -> Value:
        return elements.astype("f32")


@dataclass(frozen=True, slots=True)
class WidenedBf16(_FloatOperands):
    """bfloat16 on any CPU: a pair of neighbours becomes two float32 by a shift and a mask, each fused into the sum.

    On Intel's CPUs this is faster than `Bf16Dot`: two ports take a fused multiply-add a cycle, one port takes a
    `vdpbf16ps` every other cycle, so the pair costs as much as four single products.
    """

    accumulators: int
    element: ClassVar[str] = "bf16"  # type: ignore[misc]
    k: ClassVar[int] = 2
    per_word: ClassVar[int] = 1

    def load(self, source: Memory, at: Sequence[Index]) -> list[Value]:
        pairs = source.load_vector(at, 2 * LANES).bitcast("i32")
        halves = pairs << 16, pairs & -0x10000
        return [half.bitcast("f32") for half in halves]

    def load_part(self, source: Memory, at: Sequence[Index], part: int) -> Value:
        if part == 0 or self.accumulators < LANES:  # narrower machines have no masks
            return self.load(source, at)[part]
        return source.load_masked(at, [False, True] * LANES).bitcast("f32")


@dataclass(frozen=True, slots=True)
class FloatFma(_FloatOperands):
    """float32 and float16 on any CPU: one neighbour after the other, widened and fused into the sum."""

    element: str
    accumulators: int
    k: ClassVar[int] = 1
    per_word: ClassVar[int] = 1

    def load(self, source: Memory, at: Sequence[Index]) -> list[Value]:
        return [self.widen(source.load_vector(at))]

    def load_part(self, source: Memory, at: Sequence[Index], part: int) -> Value:
        return self.load(source, at)[part]


def arithmetic_of(features: AbstractSet[str], dtype: str) -> Arithmetic:
    """Return the arithmetic for weights of `dtype` on a CPU with `features` (LLVM's names)."""
    accumulators = 16 if "avx512f" in features else 4
    if dtype != "bfloat16":
        return FloatFma(ELEMENTS[dtype], accumulators)
    if "bf16" in features:
        return Bfdot()
    # Only AMD's CPUs have SSE4A; they take two `vdpbf16ps` a cycle.
    return Bf16Dot() if {"avx512bf16", "sse4a"} <= features else WidenedBf16(accumulators)


def row_stride(inputs: int, arithmetic: Arithmetic) -> int:
    """Return the words between rows of a left operand."""
    return inputs // arithmetic.per_word + ROW_PADDING
