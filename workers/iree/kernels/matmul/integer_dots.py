"""The choice of the integer dot products of a CPU."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.matmul.integer_dot import IntegerDot, PlainDot
from workers.iree.kernels.matmul.neon_dots import Sdot, SdotOffset, Smlal, SmullSadalp, Usdot
from workers.iree.kernels.matmul.x86_dots import YMM_LANES, Vpdpbusd, Vpmaddubsw, Vpmaddwd


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
    if "i8mm" in features:
        return IntegerDots(Usdot(), Usdot())
    if "dotprod" in features:
        return IntegerDots(SdotOffset(), Sdot())
    if "neon" in features:
        return IntegerDots(SmullSadalp(), Smlal())
    return PLAIN_DOTS
