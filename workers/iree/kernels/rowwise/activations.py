"""Activation functions of gated linear units."""

import math
from collections.abc import Callable, Mapping

from workers.checkpoints.architectures.parts import Activation
from workers.iree.kernels.ir.operations import exp, fma, tanh
from workers.iree.kernels.ir.value import Value


def silu(x: Value) -> Value:
    """x / (1 + exp(-x)) (https://arxiv.org/abs/1702.03118)."""
    return x / (exp(-x) + 1.0)


def gelu_tanh(x: Value) -> Value:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) (https://arxiv.org/abs/1606.08415)."""
    cube = x * x * x
    bent = tanh(fma(cube, 0.044715, x) * (2 / math.pi) ** 0.5)
    half = x * 0.5
    return fma(half, bent, half)


ACTIVATIONS: Mapping[Activation, Callable[[Value], Value]] = {"silu": silu, "gelu_tanh": gelu_tanh}
