"""The choice of the integer dot products of a CPU."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from workers.checkpoints.quantized_matrix import GroupFormat
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.matmul.integer_dot import IntegerDot, PlainDot
from workers.iree.kernels.matmul.neon_dots import Sdot, SdotOffset, Smlal, SmullSadalp, Usdot
from workers.iree.kernels.matmul.x86_dots import YMM_LANES, Vpdpbusd, Vpmaddubsw, Vpmaddwd


@dataclass(frozen=True, slots=True)
class IntegerDots:
    """The dot products of one kind of CPU, by the format of the levels."""

    of_8_bits: IntegerDot
    of_4_bits: IntegerDot
    of_fp4: IntegerDot
    """For levels up to 24."""

    def of(self, format: GroupFormat) -> IntegerDot:
        """Return those for levels of a format."""
        if format.e2m1:
            return self.of_fp4
        return self.of_4_bits if format.bits == 4 else self.of_8_bits


PLAIN_DOTS = IntegerDots(PlainDot(), PlainDot(), PlainDot())


def choose_integer_dots(features: AbstractSet[str]) -> IntegerDots:
    """Return the dot products of a CPU with `features` (LLVM's names)."""
    if "avx512vnni" in features:
        return IntegerDots(*(Vpdpbusd(LANES) for _ in range(3)))
    if "avxvnni" in features:
        return IntegerDots(*(Vpdpbusd(YMM_LANES) for _ in range(3)))
    if "avx2" in features:
        return IntegerDots(Vpmaddwd(), Vpmaddubsw(), Vpmaddubsw(narrow_dots=4))
    if "i8mm" in features:
        return IntegerDots(Usdot(), Usdot(), Usdot())
    if "dotprod" in features:
        return IntegerDots(SdotOffset(), Sdot(), Sdot())
    if "neon" in features:
        return IntegerDots(SmullSadalp(), Smlal(), Smlal(narrow_dots=8))
    return PLAIN_DOTS
