"""How operands are multiplied and summed: the ways that kernels know, each with its layout.

A product runs along its inner dimension in *steps* of `k` neighbours. Its right operand is packed so that one load
gets a step for 16 outputs. Its left operand is [rows, words] of int32; a word holds the `word` neighbours that one
instruction sums, so a step takes k / word of them. Every output has one sum, to which the steps are added in rising
order, whatever the number of rows.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import ClassVar, Protocol

from workers.iree.kernels.ir.builder import ELEMENT, FLOATS, LANES, Code, Value

PADDING = LANES
"""Words after each row of a left operand: rows a power of two apart would fall into the same lines of the cache."""


class Arithmetic(Protocol):
    """How one CPU multiplies weights of one type."""

    @property
    def element(self) -> str:
        """MLIR's type of weights and cache."""

    @property
    def k(self) -> int:
        """Neighbours of a step."""

    @property
    def word(self) -> int:
        """Neighbours in a word of the left operand."""

    @property
    def sums(self) -> int:
        """Sums to run side by side: those that the vector registers hold beside what is multiplied."""

    def load(self, code: Code, source: Value, at: list[str]) -> list[str]:
        """The right operand of a step for 16 outputs, a part for each word; `at` ends with an element's offset."""

    def load_part(self, code: Code, source: Value, at: list[str], part: int) -> str:
        """One of `load`'s parts, by instructions that share nothing with those of another: no register is taken by
        what another will be made of."""

    def spread(self, code: Code, word: str) -> str:
        """The left operand: an int32 word for every output."""

    def dot(self, code: Code, total: str, right: str, left: str) -> str:
        """float32 [16]: `total` and the product."""

    def words(self, code: Code, floats: str, lanes: int = LANES) -> str:
        """float32 [lanes] -> int32 [lanes / word]."""

    def floats(self, code: Code, words: str) -> str:
        """int32 [16 / word] -> float32 [16]."""

    def elements(self, code: Code, floats: str, lanes: int = LANES) -> str:
        """float32 [lanes] -> elements [lanes], rounded as the words are."""

    def widen(self, code: Code, elements: str, lanes: int = LANES) -> str:
        """The float32 values of elements."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """bfloat16 on AVX512-BF16: `vdpbf16ps` adds two products to a float32, the second neighbour's first.

    Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VDPBF16PS.
    """

    element: ClassVar[str] = "bf16"
    k: ClassVar[int] = 2
    word: ClassVar[int] = 2
    sums: ClassVar[int] = 16

    def load(self, code: Code, source: Value, at: list[str]) -> list[str]:
        return [code.read(source, at, 2 * LANES)]

    def load_part(self, code: Code, source: Value, at: list[str], part: int) -> str:
        return self.load(code, source, at)[part]

    def spread(self, code: Code, word: str) -> str:
        return code.let(f"vector.bitcast {code.spread(word, 'i32')} : vector<{LANES}xi32> to vector<{2 * LANES}xbf16>")

    def dot(self, code: Code, total: str, right: str, left: str) -> str:
        return code.let(
            f'llvm.call_intrinsic "llvm.x86.avx512bf16.dpbf16ps.512"({total}, {right}, {left})'
            f" : ({FLOATS}, vector<{2 * LANES}xbf16>, vector<{2 * LANES}xbf16>) -> {FLOATS}"
        )

    def words(self, code: Code, floats: str, lanes: int = LANES) -> str:
        return code.let(
            f"vector.bitcast {self.elements(code, floats, lanes)} : vector<{lanes}xbf16> to vector<{lanes // 2}xi32>"
        )

    def floats(self, code: Code, words: str) -> str:
        return self.widen(code, code.let(f"vector.bitcast {words} : vector<{LANES // 2}xi32> to vector<{LANES}xbf16>"))

    def elements(self, code: Code, floats: str, lanes: int = LANES) -> str:
        if lanes != LANES:
            return code.let(f"arith.truncf {floats} : vector<{lanes}xf32> to vector<{lanes}xbf16>")
        return code.let(
            f'llvm.call_intrinsic "llvm.x86.avx512bf16.cvtneps2bf16.512"({floats}) : ({FLOATS}) -> vector<{LANES}xbf16>'
        )

    def widen(self, code: Code, elements: str, lanes: int = LANES) -> str:
        return code.let(f"arith.extf {elements} : vector<{lanes}xbf16> to vector<{lanes}xf32>")


class _Floats:
    """Left operands that stay float32, so that only weights and cache are rounded to the element."""

    __slots__ = ()
    element: str

    def spread(self, code: Code, word: str) -> str:
        return code.spread(code.let(f"arith.bitcast {word} : i32 to f32"))

    def dot(self, code: Code, total: str, right: str, left: str) -> str:
        return code.let(f"vector.fma {right}, {left}, {total} : {FLOATS}")

    def words(self, code: Code, floats: str, lanes: int = LANES) -> str:
        return code.let(f"vector.bitcast {floats} : vector<{lanes}xf32> to vector<{lanes}xi32>")

    def floats(self, code: Code, words: str) -> str:
        return code.let(f"vector.bitcast {words} : vector<{LANES}xi32> to {FLOATS}")

    def elements(self, code: Code, floats: str, lanes: int = LANES) -> str:
        if self.element == "f32":
            return floats
        return code.let(f"arith.truncf {floats} : vector<{lanes}xf32> to vector<{lanes}x{self.element}>")

    def widen(self, code: Code, elements: str, lanes: int = LANES) -> str:
        if self.element == "f32":
            return elements
        return code.let(f"arith.extf {elements} : vector<{lanes}x{self.element}> to vector<{lanes}xf32>")


@dataclass(frozen=True, slots=True)
class Widened(_Floats):
    """bfloat16 on any CPU: a pair of neighbours becomes two float32 by a shift and a mask, each fused into the sum.

    On Intel's CPUs this is faster than `Pairs`: two ports take a fused multiply-add a cycle, one port takes a
    `vdpbf16ps` every other cycle, so the pair costs as much as four single products.
    """

    sums: int
    element: ClassVar[str] = "bf16"  # type: ignore[misc]
    k: ClassVar[int] = 2
    word: ClassVar[int] = 1

    def load(self, code: Code, source: Value, at: list[str]) -> list[str]:
        kind = f"vector<{LANES}xi32>"
        pairs = code.let(f"vector.bitcast {code.read(source, at, 2 * LANES)} : vector<{2 * LANES}xbf16> to {kind}")
        first = code.let(f"arith.shli {pairs}, {code.constant(f'dense<16> : {kind}')} : {kind}")
        second = code.let(f"arith.andi {pairs}, {code.constant(f'dense<-65536> : {kind}')} : {kind}")
        return [code.let(f"vector.bitcast {half} : {kind} to {FLOATS}") for half in (first, second)]

    def load_part(self, code: Code, source: Value, at: list[str], part: int) -> str:
        if part == 0 or self.sums < LANES:  # narrower machines have no masks
            return self.load(code, source, at)[part]
        kind = f"vector<{2 * LANES}x{self.element}>"
        mask = code.constant(f"dense<[{', '.join(['false, true'] * LANES)}]> : vector<{2 * LANES}xi1>")
        pairs = code.let(
            f"vector.maskedload {source.name}[{', '.join(at)}], {mask}, {code.constant(f'dense<0.0> : {kind}')}"
            f" : {source.type}, vector<{2 * LANES}xi1>, {kind} into {kind}"
        )
        return code.let(f"vector.bitcast {pairs} : {kind} to {FLOATS}")


@dataclass(frozen=True, slots=True)
class Singles(_Floats):
    """float32 and float16 on any CPU: one neighbour after the other, widened and fused into the sum."""

    element: str
    sums: int
    k: ClassVar[int] = 1
    word: ClassVar[int] = 1

    def load(self, code: Code, source: Value, at: list[str]) -> list[str]:
        return [self.widen(code, code.read(source, at))]

    def load_part(self, code: Code, source: Value, at: list[str], part: int) -> str:
        return self.load(code, source, at)[part]


def arithmetic_of(features: AbstractSet[str], dtype: str) -> Arithmetic:
    """For weights of `dtype` on a CPU with `features` (LLVM's names)."""
    sums = 16 if "avx512f" in features else 4
    if dtype != "bfloat16":
        return Singles(ELEMENT[dtype], sums)
    # Only AMD's CPUs have SSE4A; they take two `vdpbf16ps` a cycle.
    return Pairs() if {"avx512bf16", "sse4a"} <= features else Widened(sums)


def stride(inputs: int, arithmetic: Arithmetic) -> int:
    """Words between rows of a left operand."""
    return inputs // arithmetic.word + PADDING
