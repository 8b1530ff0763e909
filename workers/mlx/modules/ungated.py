"""MLPs of mlx-lm's models without a gate, with the activation of `ModelConfig` and without `mx.compile`."""

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from workers.checkpoints.architectures.parts import Activation
from workers.checkpoints.checkpoint import ModelConfig


def silu(x: mx.array) -> mx.array:
    """x / (1 + exp(-x))."""
    return x * mx.sigmoid(x)


def gelu_tanh(x: mx.array) -> mx.array:
    """The approximation of GELU by tanh."""
    return 0.5 * x * (1 + mx.tanh((2 / mx.pi) ** 0.5 * (x + 0.044715 * x**3)))


def gelu(x: mx.array) -> mx.array:
    """x / 2 * (1 + erf(x / sqrt(2)))."""
    return x * (1 + mx.erf(x * 0.5**0.5)) * 0.5


def relu2(x: mx.array) -> mx.array:
    """The square of max(x, 0)."""
    return mx.square(mx.maximum(x, 0))


ACTIVATIONS: Mapping[Activation, Callable[[mx.array], mx.array]] = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "gelu": gelu,
    "relu2": relu2,
}


class UngatedMlp(nn.Module):  # type: ignore[misc]
    """down(act(up(x))), with the matrices of an MLP of mlx-lm."""

    def __init__(self, up: nn.Module, down: nn.Module, activation: Activation) -> None:
        super().__init__()
        self.up = up
        self.down = down
        self._activation = ACTIVATIONS[activation]

    def __call__(self, x: mx.array) -> mx.array:
        out: mx.array = self.down(self._activation(self.up(x)))
        return out


def ungated(up: str, down: str) -> Callable[[Any, ModelConfig], None]:
    """Return what replaces the MLPs of a loaded model, whose matrices have these names."""

    def replace(model: Any, config: ModelConfig) -> None:
        for layer in model.layers:
            layer.mlp = UngatedMlp(getattr(layer.mlp, up), getattr(layer.mlp, down), config.activation)

    return replace
