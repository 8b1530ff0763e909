"""Activations of MLPs, with and without gates, against Python's math."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.workers.iree.kernels.running import ARITHMETICS, TOLERANCE, Run, floats
from workers.checkpoints.architectures.parts import Activation
from workers.iree.kernels.ir.arithmetic import Arithmetic
from workers.iree.kernels.rowwise.glu import glu

FUNCTIONS: dict[Activation, Callable[[float], float]] = {
    "gelu": lambda x: x / 2 * (1 + math.erf(x / 2**0.5)),
    "relu2": lambda x: max(x, 0) ** 2,
}


@pytest.mark.parametrize("arithmetic", ARITHMETICS[:1])
@pytest.mark.parametrize(("activation", "gated"), [("gelu", False), ("relu2", True)])
def test_activations(run: Run, arithmetic: Arithmetic, activation: Activation, gated: bool) -> None:
    values = np.linspace(-6, 6, 6 * 64, dtype=np.float32).reshape(6, 64)
    (out,) = run(glu("glu", 6, 32 if gated else 64, arithmetic, activation, gated=gated), values)
    gates, factor = (values[:, :32], values[:, 32:]) if gated else (values, np.float32(1))
    expected = np.vectorize(FUNCTIONS[activation], otypes=[np.float64])(gates.astype(np.float64)) * factor
    np.testing.assert_allclose(
        floats(out, gates.shape[1], arithmetic), expected, atol=TOLERANCE[arithmetic.element], rtol=1e-5
    )
