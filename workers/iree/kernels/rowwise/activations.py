"""Activation functions of gated linear units."""

import math
from collections.abc import Callable, Mapping

from workers.checkpoints.architectures.parts import Activation
from workers.iree.kernels.ir.builder import FLOATS, Code


def silu(code: Code, x: str) -> str:
    """x / (1 + exp(-x)) (https://arxiv.org/abs/1702.03118)."""
    power = code.let(f"math.exp {code.let(f'arith.negf {x} : {FLOATS}')} : {FLOATS}")
    below = code.let(f"arith.addf {power}, {code.floats(1.0)} : {FLOATS}")
    return code.let(f"arith.divf {x}, {below} : {FLOATS}")


def gelu_tanh(code: Code, x: str) -> str:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) (https://arxiv.org/abs/1606.08415)."""
    square = code.let(f"arith.mulf {x}, {x} : {FLOATS}")
    cube = code.let(f"arith.mulf {square}, {x} : {FLOATS}")
    inner = code.let(f"vector.fma {cube}, {code.floats(0.044715)}, {x} : {FLOATS}")
    bent = code.let(
        f"math.tanh {code.let(f'arith.mulf {inner}, {code.floats((2 / math.pi) ** 0.5)} : {FLOATS}')} : {FLOATS}"
    )
    half = code.let(f"arith.mulf {x}, {code.floats(0.5)} : {FLOATS}")
    return code.let(f"vector.fma {half}, {bent}, {half} : {FLOATS}")


ACTIVATIONS: Mapping[Activation, Callable[[Code, str], str]] = {"silu": silu, "gelu_tanh": gelu_tanh}
