"""How operands are multiplied and summed: the two ways that kernels know, each with its layout.

A product's left operand, its *words*, is [rows, words] of int32; a word holds as many neighbours along the inner
dimension as one instruction sums. Its right operand is packed so that a vector load gets those neighbours for 16
outputs. Every output has one sum, and the inner dimension is added to it in rising order, whatever the number of rows.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import ClassVar, Protocol

from workers.iree.kernels.code import ELEMENT, FLOATS, LANES, Code, Value


class Arithmetic(Protocol):
    """How one CPU multiplies weights of one type."""

    @property
    def element(self) -> str:
        """MLIR's type of weights and cache."""

    @property
    def k(self) -> int:
        """Neighbours along the inner dimension in a word."""

    @property
    def rows(self) -> int:
        """Rows to sum at once: a vector register each, and half of those that there are."""

    def load(self, code: Code, source: Value, at: list[str]) -> str:
        """The right operand for 16 outputs and one word; `at` ends with an element's offset."""

    def spread(self, code: Code, word: str) -> str:
        """The left operand: an int32 word for every output."""

    def dot(self, code: Code, total: str, right: str, left: str) -> str:
        """float32 [16]: `total` and the product."""

    def words(self, code: Code, floats: str, lanes: int = LANES) -> str:
        """float32 [lanes] -> int32 [lanes / k]."""

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
    rows: ClassVar[int] = 16

    def load(self, code: Code, source: Value, at: list[str]) -> str:
        return code.read(source, at, 2 * LANES)

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

    def elements(self, code: Code, floats: str, lanes: int = LANES) -> str:
        if lanes != LANES:
            return code.let(f"arith.truncf {floats} : vector<{lanes}xf32> to vector<{lanes}xbf16>")
        return code.let(
            f'llvm.call_intrinsic "llvm.x86.avx512bf16.cvtneps2bf16.512"({floats}) : ({FLOATS}) -> vector<{LANES}xbf16>'
        )

    def widen(self, code: Code, elements: str, lanes: int = LANES) -> str:
        return code.let(f"arith.extf {elements} : vector<{lanes}xbf16> to vector<{lanes}xf32>")


@dataclass(frozen=True, slots=True)
class Singles:
    """Any CPU and any float type: elements are widened to float32 and one product is fused into each sum.

    The left operand stays float32, so only weights and cache are rounded to the element.
    """

    element: str
    rows: int
    k: ClassVar[int] = 1

    def load(self, code: Code, source: Value, at: list[str]) -> str:
        return self.widen(code, code.read(source, at))

    def spread(self, code: Code, word: str) -> str:
        return code.spread(code.let(f"arith.bitcast {word} : i32 to f32"))

    def dot(self, code: Code, total: str, right: str, left: str) -> str:
        return code.let(f"vector.fma {right}, {left}, {total} : {FLOATS}")

    def words(self, code: Code, floats: str, lanes: int = LANES) -> str:
        return code.let(f"vector.bitcast {floats} : vector<{lanes}xf32> to vector<{lanes}xi32>")

    def elements(self, code: Code, floats: str, lanes: int = LANES) -> str:
        if self.element == "f32":
            return floats
        return code.let(f"arith.truncf {floats} : vector<{lanes}xf32> to vector<{lanes}x{self.element}>")

    def widen(self, code: Code, elements: str, lanes: int = LANES) -> str:
        if self.element == "f32":
            return elements
        return code.let(f"arith.extf {elements} : vector<{lanes}x{self.element}> to vector<{lanes}xf32>")


def arithmetic_of(features: AbstractSet[str], dtype: str) -> Arithmetic:
    """For weights of `dtype` on a CPU with `features` (LLVM's names)."""
    if dtype == "bfloat16" and "avx512bf16" in features:
        return Pairs()
    return Singles(ELEMENT[dtype], 16 if "avx512f" in features else 4)
