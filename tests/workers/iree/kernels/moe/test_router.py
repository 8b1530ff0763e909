"""Routers against numpy: every score, ties, and logits that are not finite."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.reference.routing import routed
from workers.checkpoints.architectures.parts import ExpertRouter, Experts
from workers.iree.build.compiler import Compiler
from workers.iree.build.lower import Graph, lower_module, struct
from workers.iree.device.device import Device, Module
from workers.iree.kernels.moe.router import route
from workers.iree.kernels.moe.routing import Mixture
from workers.iree.model.kernel_calls import call, floats, words

ROWS, COUNT = 6, 24
SIGMOID = ExpertRouter("sigmoid", bias=True, scale=2.5, sum_offset=1e-20)
ROUTERS = {
    "bias": SIGMOID,
    "groups": ExpertRouter("sigmoid", bias=True, groups=4, kept_groups=2, scale=1.5, sum_offset=1e-6),
    "best_of_group": ExpertRouter(groups=3, kept_groups=1, group_best=1, scale=16.0),
    "plain": ExpertRouter(),
    "softmax_bias": ExpertRouter(bias=True, least_sum=1e-12),
    "sparsemixer": ExpertRouter("sparsemixer", jitter=0.01),
}
"""GLM-4.5's and DeepSeek-V3's, DeepSeek-V2's, Mixtral's, ERNIE's and Phi-3.5-MoE's."""
BIAS = np.random.default_rng(5).uniform(-0.5, 0.5, COUNT).astype(np.float32)


def experts_of(router: ExpertRouter) -> Experts:
    return Experts(COUNT, 2 if router.score == "sparsemixer" else 5, 16, router.score != "softmax", router=router)


def _graph(name: str, mixture: Mixture) -> Callable[..., Any]:
    shape = (ROWS, mixture.experts.per_token)

    def run(logits: jax.Array, bias: jax.Array, live: jax.Array, parameters: Any) -> Any:
        given = bias if mixture.experts.router.bias else None
        return tuple(call(name, (words(*shape), floats(*shape)), logits, given, live))

    return run


class Routers:
    """The kernels of all routers, as one module."""

    def __init__(self, cache_dir: Path) -> None:
        self.device, bodies, graphs = Device("local-task", 0, "host"), {}, []
        for name, router in ROUTERS.items():
            mixture, kernel = Mixture(ROWS, 64, experts_of(router)), f"baton_{name}"
            bodies[kernel] = route(kernel, mixture, live=True)
            inputs = (struct((ROWS, COUNT), "float32"), struct((COUNT,), "float32"), struct((1,), "int32"))
            graphs.append(Graph(name, _graph(kernel, mixture), inputs, pure=True))
        compiler = Compiler(cache_dir, self.device.compile_flags(), self.device.compile_target())
        self.module: Module = self.device.load(compiler.compile(lower_module(graphs, {}, bodies)), None, "")

    def __call__(self, name: str, logits: NDArray[np.float32], live: int = ROWS) -> list[NDArray[Any]]:
        """Return the chosen experts and their weights."""
        inputs = (logits, BIAS, np.array([live], np.int32))
        return [self.device.download(each) for each in self.module.call(name, *map(self.device.upload, inputs))]

    def close(self) -> None:
        del self.module
        self.device.close()


@pytest.fixture(scope="module")
def routers(cache_dir: Path) -> Iterator[Routers]:
    made = Routers(cache_dir)
    yield made
    made.close()


@pytest.mark.parametrize("name", ROUTERS)
def test_choice(routers: Routers, name: str) -> None:
    router = ROUTERS[name]
    logits = np.random.default_rng(3).standard_normal((ROWS, COUNT)).astype(np.float32) * 3
    logits[1] = np.round(logits[1])  # ties, of which the first wins
    logits[2] = 1
    if router.score == "sparsemixer":
        logits[3:] = 4 + logits[3:] / 100  # many are near the best
    expected = routed(np, logits, experts_of(router), BIAS if router.bias else None)
    chosen, weights = routers(name, logits)
    np.testing.assert_array_equal(chosen, expected[0])
    np.testing.assert_allclose(weights, expected[1], rtol=2e-6)
    for row in range(ROWS):  # alone, the others being padding
        alone = np.repeat(logits[row : row + 1], ROWS, 0)
        alone[1:] = np.nan
        for part, whole in zip(routers(name, alone, live=1), (chosen, weights), strict=True):
            np.testing.assert_array_equal(part[0], whole[row])


@pytest.mark.parametrize("name", ROUTERS)
def test_logits_that_are_not_finite(routers: Routers, name: str) -> None:
    """They make all weights of the row NaN, so that the step fails, whichever experts are chosen."""
    logits = np.random.default_rng(4).standard_normal((ROWS, COUNT)).astype(np.float32)
    logits[1, 7], logits[2, 23], logits[3, 0], logits[4] = np.nan, np.inf, -np.inf, np.nan
    chosen, weights = routers(name, logits)
    assert np.isnan(weights[1:5]).all()
    assert np.isfinite(weights[[0, 5]]).all()
    assert ((chosen >= 0) & (chosen < COUNT)).all()
