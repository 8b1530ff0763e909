"""An online softmax: weights are relative to the greatest score so far, and two partial results merge into one.

Milakov and Gimelshein, https://arxiv.org/abs/1805.02867; Dao et al., https://arxiv.org/abs/2205.14135.
"""

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
"""Coefficients of exp(x) around 0, from x^7 to x^0."""
LN2 = (0.693359375, -2.12194440e-4)
"""The natural logarithm of 2 in two parts, of which the first times a small integer is exact."""
SHIFT = 3.0 * 2**22
"""Rounds a number that it is added to: the sum has no fraction, and its last bits are the nearest integer."""
MIN_EXPONENT = -87.0
"""Smaller arguments of exp are raised to this: the result would have no exponent."""


@dataclass(frozen=True, slots=True)
class SoftmaxState:
    """The softmax of some positions of a row, relative to the greatest score among them."""

    top: Value
    """The greatest score, in every lane."""
    mass: Value
    """The sums of the weights, by lane."""
    sums: tuple[Value, ...]
    """The weighted sums of the values, 16 lanes each."""

    @staticmethod
    def width(head_dim: int) -> int:
        """Return the number of float32 that hold a state."""
        return head_dim + 2 * LANES

    @classmethod
    def empty(cls, code: Code, head_dim: int) -> Self:
        """Return the softmax of no positions."""
        zero = code.floats(0.0)
        return cls(code.floats(LOW), zero, (zero,) * (head_dim // LANES))

    @classmethod
    def of(cls, flat: Sequence[Value]) -> Self:
        """Return the state whose `flat` this is."""
        *sums, mass, top = flat
        return cls(top, mass, tuple(sums))

    @classmethod
    def load(cls, source: Memory, at: Sequence[Index]) -> Self:
        """Load what `store` stored to [*at, 0 .. width]."""
        lanes = range(0, source.shape[-1], LANES)
        return cls.of([source.load_vector([*at, lane]) for lane in lanes])

    def flat(self) -> list[Value]:
        return [*self.sums, self.mass, self.top]

    def store(self, target: Memory, at: Sequence[Index]) -> None:
        for i, part in enumerate(self.flat()):
            target.store(part, [*at, i * LANES])

    def merge(self, after: Self) -> "SoftmaxState":
        """Return the softmax of the positions of both. A state of no positions changes no bit of the other."""
        top = self.top.maximum(after.top)
        old, new = exp(self.top - top), exp(after.top - top)

        def rescaled(a: Value, b: Value) -> Value:
            return fma(a, old, b * new)

        sums = tuple(rescaled(a, b) for a, b in zip(self.sums, after.sums, strict=True))
        return SoftmaxState(top, rescaled(self.mass, after.mass), sums)


def with_sink(state: SoftmaxState, logit: Value) -> SoftmaxState:
    """Return the softmax with a logit more in every lane, which adds to the sum of the weights alone: an attention sink
    (https://arxiv.org/abs/2309.17453). The mass of the result has the whole sum in every lane."""
    top = state.top.maximum(logit)
    old, new = exp(state.top - top), exp(logit - top)
    mass = fma(state.mass.sum_lanes().broadcast(), old, new)
    return SoftmaxState(top, mass, tuple(part * old for part in state.sums))


def exp(x: Value) -> Value:
    """Return exp(x) for x <= 0, to two units in the last place and 1 for 0: Cephes' expf with fused multiply-adds.

    https://www.netlib.org/cephes/
    """
    x = constant(x.code, MIN_EXPONENT, x.type).maximum(x)
    shifted = fma(x, math.log2(math.e), SHIFT)
    whole = shifted - SHIFT
    for part in LN2:
        x = fma(whole, -part, x)
    sum_ = constant(x.code, SERIES[0], x.type)
    for coefficient in SERIES[1:]:
        sum_ = fma(sum_, x, coefficient)
    bits, exponent = sum_.bitcast("i32"), shifted.bitcast("i32")
    return (bits + (exponent << 23)).bitcast("f32")
