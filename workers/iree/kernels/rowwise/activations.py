"""Activation functions of MLPs."""

import math
from collections.abc import Callable, Mapping, Sequence

from workers.checkpoints.architectures.parts import Activation
from workers.iree.kernels.ir.operations import absolute, exp, fma, log1p, tanh
from workers.iree.kernels.ir.value import Value, constant

ERF_BOUND = 4.0
"""erf is 1 in float32 from here on."""
ERF_ABOVE = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
ERF_BELOW = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)
QUICK_GELU = 1.702
"""The constant of `quick_gelu`."""
SWIGLU_LIMIT, SWIGLU_ALPHA = 7.0, 1.702
"""Constants of `clamped_swiglu`."""


def silu(x: Value) -> Value:
    """x / (1 + exp(-x)) (https://arxiv.org/abs/1702.03118)."""
    return x / (exp(-x) + 1.0)


def gelu_tanh(x: Value) -> Value:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) (https://arxiv.org/abs/1606.08415)."""
    cube = x * x * x
    bent = tanh(fma(cube, 0.044715, x) * (2 / math.pi) ** 0.5)
    half = x * 0.5
    return fma(half, bent, half)


def gelu(x: Value) -> Value:
    """x / 2 * (1 + erf(x / sqrt(2))) (https://arxiv.org/abs/1606.08415)."""
    half = x * 0.5
    return fma(half, erf(x * 0.5**0.5), half)


def quick_gelu(x: Value) -> Value:
    """x / (1 + exp(-1.702 x)) (https://arxiv.org/abs/1606.08415)."""
    return x / (exp(x * -QUICK_GELU) + 1.0)


def erf(x: Value) -> Value:
    """Return the error function, to some units in the last place of float32: the quotient of polynomials of x^2 of
    Eigen and XLA (https://github.com/openxla/xla/blob/main/xla/hlo/builder/lib/math.cc)."""
    x = x.maximum(-ERF_BOUND).minimum(ERF_BOUND)
    square = x * x
    above, below = (_polynomial(square, terms) for terms in (ERF_ABOVE, ERF_BELOW))
    return x * above / below


def relu2(x: Value) -> Value:
    """The square of max(x, 0) (https://arxiv.org/abs/2109.08668)."""
    positive = x.maximum(0.0)
    return positive * positive


def softplus(x: Value) -> Value:
    """log(1 + exp(x)), without overflow."""
    return x.maximum(0.0) + log1p(exp(-absolute(x)))


def _polynomial(x: Value, terms: Sequence[float]) -> Value:
    """Return the polynomial with these coefficients, that of the highest power first."""
    value = x * terms[0] + terms[1]
    for term in terms[2:]:
        value = fma(value, x, term)
    return value


def clamped_swiglu(gate: Value, up: Value) -> Value:
    """(up + 1) * gate * sigmoid(1.702 * gate), of gates up to 7 and ups from -7 to 7
    (https://arxiv.org/abs/2508.10925)."""
    low, high = (constant(gate.code, limit, gate.type) for limit in (-SWIGLU_LIMIT, SWIGLU_LIMIT))
    gate, up = high.minimum(gate), high.minimum(low.maximum(up))  # NaN stays NaN
    return gate / (exp(gate * -SWIGLU_ALPHA) + 1.0) * (up + 1.0)


def gated_unit(activation: Activation, gate: Value, up: Value) -> Value:
    """Return the GLU of an MLP: act(gate) * up, or `clamped_swiglu`."""
    return clamped_swiglu(gate, up) if activation == "clamped_swiglu" else ACTIVATIONS[activation](gate) * up


def activated(activation: Activation, parts: Sequence[Value]) -> Value:
    """Return the GLU of a gate and its other half, or the activation of the only part of an MLP without a gate."""
    return gated_unit(activation, *parts) if len(parts) == 2 else ACTIVATIONS[activation](*parts)


ACTIVATIONS: Mapping[Activation, Callable[[Value], Value]] = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "gelu": gelu,
    "quick_gelu": quick_gelu,
    "relu2": relu2,
}
"""Those of one value."""
