"""Mixtures of experts whose router is more than a softmax, in place of those of mlx-lm's models.

Its own compute the same for one row, but round logits to the type of the weights, and leave open which of equal experts
is chosen.
"""

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from workers.checkpoints.architectures.parts import Experts
from workers.checkpoints.checkpoint import ModelConfig

BLOCKS = ("mlp", "feed_forward", "block_sparse_moe", "mixer")
"""The names of mixtures in a layer."""
LATENT = ("fc1_latent_proj", "fc2_latent_proj")
"""The names of the projections to the latents that experts compute, and back."""
SCORE_BIAS = "score_bias"
"""The name of the router's bias in `RoutedExperts`."""


class RoutedExperts(nn.Module):  # type: ignore[misc]
    """A mixture with the experts, and the shared expert, of a mixture of mlx-lm, and a router of our own."""

    def __init__(self, mixture: nn.Module, hidden: int, experts: Experts) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, experts.count, bias=False)
        self.switch_mlp = mixture.switch_mlp
        for name in ("shared_experts", *LATENT):
            if mixture.get(name) is not None:
                self[name] = mixture[name]
        if experts.router.bias:
            self[SCORE_BIAS] = mx.zeros((experts.count,))
        self._experts = experts

    def __call__(self, x: mx.array) -> mx.array:
        chosen, weights = route(self._logits(x), self._experts, self.get(SCORE_BIAS))
        read = self[LATENT[0]](x) if LATENT[0] in self else x
        out: mx.array = (self.switch_mlp(read, chosen) * weights[..., None]).sum(axis=-2).astype(x.dtype)
        if LATENT[1] in self:
            out = self[LATENT[1]](out)
        return out + self.shared_experts(x) if "shared_experts" in self else out

    def _logits(self, x: mx.array) -> mx.array:
        """Return float32 logits, of plain matrices unrounded."""
        logits: mx.array
        if type(self.gate) is nn.Linear and self.gate.weight.dtype != mx.float32:
            logits = x.astype(mx.float32) @ self.gate.weight.astype(mx.float32).T
        else:
            logits = self.gate(x)
        return logits.astype(mx.float32)


def replace_routers(model: Any, config: ModelConfig) -> None:
    """Replace the mixtures of a model before its weights are loaded."""
    experts = config.experts
    if experts is None or (experts.router.by_logits and experts.router.scale == 1):
        return
    for layer in model.layers:
        for name in BLOCKS:
            if name in layer and "switch_mlp" in layer[name]:
                layer[name] = RoutedExperts(layer[name], config.hidden_size, experts)


def rename_router_biases(tensors: dict[str, mx.array], config: ModelConfig) -> dict[str, mx.array]:
    """Name the biases of routers as `RoutedExperts` does, before mlx-lm drops or moves any."""
    experts, names = config.experts, config.names.experts
    if experts is None or not experts.router.bias:
        return tensors
    ending, block = f".{names.router_bias}", names.router.rpartition(".")[0]
    return {
        f"{name.removesuffix(ending)}.{block}.{SCORE_BIAS}" if name.endswith(ending) else name: (
            tensor.reshape(-1).astype(mx.float32) if name.endswith(ending) else tensor
        )
        for name, tensor in tensors.items()
    }


def route(logits: mx.array, experts: Experts, bias: mx.array | None) -> tuple[mx.array, mx.array]:
    """Logits float32 [..., experts] -> the chosen experts [..., per_token], best first and of equals the first, and
    their weights, as `ExpertRouter` describes them. All weights are NaN if one of the logits is not finite."""
    router, k = experts.router, experts.per_token
    zero = (logits - logits).sum(-1, keepdims=True)
    if router.score == "sparsemixer":
        chosen, weights = _sparse_choices(logits, router.jitter, k)
        return chosen, weights + zero
    scores = mx.sigmoid(logits) if router.score == "sigmoid" else mx.softmax(logits, axis=-1)
    choice = scores if bias is None else scores + bias
    if router.groups > 1:
        choice = _of_best_groups(choice, router.groups, router.kept_groups, router.group_best)
    chosen = mx.argsort(-choice, axis=-1)[..., :k]  # stable
    weights = mx.take_along_axis(scores, chosen, axis=-1)
    if experts.normalize:
        total = weights.sum(-1, keepdims=True) + router.sum_offset
        weights = weights / mx.maximum(total, router.least_sum)
    return chosen, weights * router.scale + zero


def _of_best_groups(choice: mx.array, groups: int, kept: int, best: int) -> mx.array:
    """Return what experts are chosen by, minus infinity for those outside of the best groups."""
    grouped = choice.reshape(*choice.shape[:-1], groups, -1)
    tops = mx.sort(grouped, axis=-1)[..., -best:].sum(-1)
    place = mx.argsort(mx.argsort(-tops, axis=-1), axis=-1)
    return mx.where((place < kept)[..., None], grouped, -mx.inf).reshape(choice.shape)


def _sparse_choices(logits: mx.array, jitter: float, k: int) -> tuple[mx.array, mx.array]:
    """The weight of each choice is its part of a softmax over those that it does not outdo by far."""
    held, chosen, weights = logits, [], []
    for _ in range(k):
        place = mx.argmax(held, axis=-1, keepdims=True)
        top = mx.take_along_axis(held, place, axis=-1)
        far = (top - logits) / mx.maximum(mx.abs(logits), top) > 2 * jitter
        powers = mx.where(far, 0, mx.exp(held - top))
        chosen.append(place)
        weights.append(1 / powers.sum(-1, keepdims=True))
        held = mx.where(mx.arange(logits.shape[-1]) == place, -mx.inf, held)
    return mx.concatenate(chosen, axis=-1), mx.concatenate(weights, axis=-1)
