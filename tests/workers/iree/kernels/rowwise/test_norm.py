"""RMS norms and LayerNorms against numpy."""

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.workers.iree.kernels.running import ARITHMETICS, TOLERANCE, Run, floats, random
from workers.iree.kernels.ir.arithmetic import Arithmetic
from workers.iree.kernels.rowwise.norm import Norm, norm


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize(
    "kind",
    [
        Norm(False, False, True),
        Norm(True, False, True),
        Norm(True, True, False),
        Norm(True, True, True),
        Norm(True, False, True, 0.22),
        Norm(True, True, False, 0.22),
        Norm(True, True, True, values=70),
        Norm(False, False, True, centred=True),
        Norm(True, False, True, 0.22, values=70, centred=True, bias=True),
    ],
    ids=str,
)
def test_norm(run: Run, arithmetic: Arithmetic, kind: Norm) -> None:
    x, delta, after, before = (random(6, 80) + 3, random(6, 80, seed=1), random(80, seed=2), random(80, seed=3))
    bias = random(80, seed=4)
    given = ((delta, kind.delta), (after, kind.after), (before, kind.before), (bias, kind.bias))
    operands = [each for each, used in given if used]
    values = kind.values or 80
    for each in (x, delta):
        each[:, values:] = 0
    if kind.centred:  # as weights are padded: the zeros of rows are not of their mean
        before[values:] = bias[values:] = 0
    *total, out = run(norm("norm", 6, 80, 1e-5, arithmetic, kind), x, *operands)

    def normed(x: NDArray[np.float32], weight: NDArray[np.float32]) -> NDArray[np.float32]:
        unit: NDArray[np.float32] = x / np.sqrt((x**2).sum(-1, keepdims=True) / values + 1e-5) * weight
        return unit

    whole = x + kind.multiplier * (normed(delta, after) if kind.after else delta) if kind.delta else x
    if kind.delta:
        np.testing.assert_allclose(total[0], whole, atol=1e-6)
    mean = whole[:, :values].mean(-1, keepdims=True) if kind.centred else 0
    centred = np.where(np.arange(80) < values, whole - mean, 0)
    expected = normed(centred, before) + (bias if kind.bias else 0) if kind.before else whole
    np.testing.assert_allclose(floats(out, 80, arithmetic), expected, atol=TOLERANCE[arithmetic.element] * 4, rtol=1e-2)
