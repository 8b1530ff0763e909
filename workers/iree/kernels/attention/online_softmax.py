"""An online softmax: weights are relative to the greatest score so far, and two partial results become one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.memory import Index, Memory
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.operations import fma
from workers.iree.kernels.ir.value import Value, constant

LOW = -1.0e30
"""Below every score, and finite: the difference of two is zero and not NaN."""
SERIES = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
    1.0,
    1.0,
)
"""exp(x) / x^0 .. x^7 around 0, the last first."""
LN2 = (0.693359375, -2.12194440e-4)
"""The natural logarithm of 2 in two parts, of which the first times a small whole number is exact."""
SHIFT = 3.0 * 2**22
"""Added to a number it leaves no bits behind the point: the sum's last bits are the nearest whole number."""
LEAST = -87.0
"""What is smaller is raised to this: its power would have no exponent."""


@dataclass(frozen=True, slots=True)
class Softened:
    """The softmax of some positions of a row, relative to the greatest score among them."""

    top: Value
    """That score, in every lane."""
    mass: Value
    """The sums of the weights, by lane."""
    sums: tuple[Value, ...]
    """The weighted sums of the values, 16 lanes each."""

    @staticmethod
    def width(head_dim: int) -> int:
        """Return the float32 values that hold one."""
        return head_dim + 2 * LANES

    @classmethod
    def empty(cls, code: Code, head_dim: int) -> Self:
        """Return the softmax of no positions."""
        zero = code.floats(0.0)
        return cls(code.floats(LOW), zero, (zero,) * (head_dim // LANES))

    @classmethod
    def of(cls, flat: Sequence[Value]) -> Self:
        """Return what `flat` gave."""
        *sums, mass, top = flat
        return cls(top, mass, tuple(sums))

    @classmethod
    def read(cls, source: Memory, at: Sequence[Index]) -> Self:
        """Load what `write` stored to [*at, 0 .. width]."""
        lanes = range(0, source.shape[-1], LANES)
        return cls.of([source.load_vector([*at, lane]) for lane in lanes])

    def flat(self) -> list[Value]:
        return [*self.sums, self.mass, self.top]

    def write(self, target: Memory, at: Sequence[Index]) -> None:
        for i, part in enumerate(self.flat()):
            target.store(part, [*at, i * LANES])

    def join(self, after: Self) -> "Softened":
        """Merge two (https://arxiv.org/abs/2205.14135). One of no positions changes no bit of the other."""
        top = self.top.maximum(after.top)
        old, new = power(self.top - top), power(after.top - top)

        def both(a: Value, b: Value) -> Value:
            return fma(a, old, b * new)

        sums = tuple(both(a, b) for a, b in zip(self.sums, after.sums, strict=True))
        return Softened(top, both(self.mass, after.mass), sums)


def power(x: Value) -> Value:
    """Return exp(x) for x <= 0, to two units in the last place and 1 for 0: Cephes' expf with fused multiply-adds.

    https://www.netlib.org/cephes/
    """
    x = constant(x.code, LEAST, x.type).maximum(x)
    shifted = fma(x, math.log2(math.e), SHIFT)
    whole = shifted - SHIFT
    for part in LN2:
        x = fma(whole, -part, x)
    sum_ = constant(x.code, SERIES[0], x.type)
    for factor in SERIES[1:]:
        sum_ = fma(sum_, x, factor)
    bits, exponent = sum_.bitcast("i32"), shifted.bitcast("i32")
    return (bits + (exponent << 23)).bitcast("f32")
