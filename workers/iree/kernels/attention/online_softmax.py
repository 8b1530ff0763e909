"""A softmax that is made of parts: weights are relative to the greatest score so far, and two parts become one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from workers.iree.kernels.ir.builder import FLOATS, LANES, Code, Value

LOW = "-1.0e30"
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
INTS = f"vector<{LANES}xi32>"


@dataclass(frozen=True, slots=True)
class Softened:
    """A softmax in the making: what some positions add to a row, relative to the greatest score among them."""

    top: str
    """That score, in every lane,"""
    mass: str
    """the weights' sums by lane,"""
    sums: tuple[str, ...]
    """and the weighted sums of the values, 16 lanes each."""

    @staticmethod
    def width(head_dim: int) -> int:
        """float32 values that hold one."""
        return head_dim + 2 * LANES

    @classmethod
    def empty(cls, code: Code, head_dim: int) -> Self:
        """No positions."""
        zero = code.floats(0.0)
        return cls(code.floats(LOW), zero, (zero,) * (head_dim // LANES))

    @classmethod
    def of(cls, flat: Sequence[str]) -> Self:
        """What `flat` gave."""
        *sums, mass, top = flat
        return cls(top, mass, tuple(sums))

    @classmethod
    def read(cls, code: Code, source: Value, at: Sequence[str]) -> Self:
        """What `write` put to [*at, 0 .. width]."""
        lanes = range(0, source.shape[-1], LANES)
        return cls.of([code.read(source, [*at, code.index(lane)]) for lane in lanes])

    def flat(self) -> list[str]:
        return [*self.sums, self.mass, self.top]

    def write(self, code: Code, target: Value, at: Sequence[str]) -> None:
        for i, part in enumerate(self.flat()):
            code.put(part, LANES, target, [*at, code.index(i * LANES)])

    def join(self, code: Code, after: Self) -> "Softened":
        """Both together (https://arxiv.org/abs/2205.14135). One of no positions changes no bit of the other."""
        top = code.greater(self.top, after.top)
        old, new = (power(code, code.let(f"arith.subf {each.top}, {top} : {FLOATS}")) for each in (self, after))

        def both(a: str, b: str) -> str:
            return code.let(f"vector.fma {a}, {old}, {code.let(f'arith.mulf {b}, {new} : {FLOATS}')} : {FLOATS}")

        sums = tuple(both(a, b) for a, b in zip(self.sums, after.sums, strict=True))
        return Softened(top, both(self.mass, after.mass), sums)


def power(code: Code, x: str) -> str:
    """exp(x) for x <= 0, to two units in the last place and 1 for 0; Cephes' expf with fused multiply-adds.

    https://www.netlib.org/cephes/
    """
    x = code.greater(code.floats(LEAST), x)
    shifted = code.let(f"vector.fma {x}, {code.floats(math.log2(math.e))}, {code.floats(SHIFT)} : {FLOATS}")
    whole = code.let(f"arith.subf {shifted}, {code.floats(SHIFT)} : {FLOATS}")
    for part in LN2:
        x = code.let(f"vector.fma {whole}, {code.floats(-part)}, {x} : {FLOATS}")
    sum_ = code.floats(SERIES[0])
    for factor in SERIES[1:]:
        sum_ = code.let(f"vector.fma {sum_}, {x}, {code.floats(factor)} : {FLOATS}")
    bits = [code.let(f"vector.bitcast {value} : {FLOATS} to {INTS}") for value in (sum_, shifted)]
    exponent = code.let(f"arith.shli {bits[1]}, {code.constant(f'dense<23> : {INTS}')} : {INTS}")
    raised = code.let(f"arith.addi {bits[0]}, {exponent} : {INTS}")
    return code.let(f"vector.bitcast {raised} : {INTS} to {FLOATS}")
