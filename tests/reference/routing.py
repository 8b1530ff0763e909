"""The routing of a mixture of experts in numpy or JAX, written from transformers' routers."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.architectures.parts import ExpertRouter, Experts

COUNT = 24
ROUTERS = {
    "bias": ExpertRouter("sigmoid", bias=True, scale=2.5, sum_offset=1e-20),
    "groups": ExpertRouter("sigmoid", bias=True, groups=4, kept_groups=2, scale=1.5, sum_offset=1e-6),
    "best_of_group": ExpertRouter(groups=3, kept_groups=1, group_best=1, scale=16.0),
    "plain": ExpertRouter(),
    "softmax_bias": ExpertRouter(bias=True, least_sum=1e-12),
    "sparsemixer": ExpertRouter("sparsemixer", jitter=0.01),
}
"""GLM-4.5's and DeepSeek-V3's, DeepSeek-V2's, Mixtral's, ERNIE's and Phi-3.5-MoE's."""


def experts_of(router: ExpertRouter) -> Experts:
    """Return a mixture of `COUNT` experts."""
    return Experts(COUNT, 2 if router.score == "sparsemixer" else 5, 16, router.score != "softmax", router=router)


def bias_of(router: ExpertRouter) -> NDArray[np.float32] | None:
    return np.random.default_rng(5).uniform(-0.5, 0.5, COUNT).astype(np.float32) if router.bias else None


def logits_for(router: ExpertRouter) -> NDArray[np.float32]:
    """Return logits [6, COUNT] with ties."""
    logits = np.random.default_rng(3).standard_normal((6, COUNT)).astype(np.float32) * 3
    logits[1] = np.round(logits[1])
    logits[2] = 1
    if router.score == "sparsemixer":
        logits[3:] = 4 + logits[3:] / 100  # many are near the best
    return logits


def logits_that_are_not_finite() -> NDArray[np.float32]:
    """Return logits [6, COUNT] that are finite in the first and the last row only."""
    logits = np.random.default_rng(4).standard_normal((6, COUNT)).astype(np.float32)
    logits[1, 7], logits[2, 23], logits[3, 0], logits[4] = np.nan, np.inf, -np.inf, np.nan
    return logits


def routed(xp: Any, logits: Any, experts: Experts, bias: Any = None) -> tuple[Any, Any]:
    """Logits float32 [rows, experts] -> the chosen experts int [rows, per_token], best first and of equals the first,
    and their weights. `xp` is numpy or jax.numpy."""
    router, k = experts.router, experts.per_token
    if router.score == "sparsemixer":
        return _sparse_mixed(xp, logits, router.jitter, k)
    powers = xp.exp(logits - logits.max(-1, keepdims=True))
    sigmoid = router.score == "sigmoid"
    scores = 1 / (1 + xp.exp(-logits)) if sigmoid else powers / powers.sum(-1, keepdims=True)
    choice = scores if bias is None else scores + bias
    if router.groups > 1:
        grouped = choice.reshape(len(logits), router.groups, -1)
        tops = xp.sort(grouped, axis=-1)[..., -router.group_best :].sum(-1)
        kept = xp.argsort(xp.argsort(-tops, axis=-1, stable=True), axis=-1, stable=True) < router.kept_groups
        choice = xp.where(kept[..., None], grouped, -xp.inf).reshape(choice.shape)
    chosen = xp.argsort(-choice, axis=-1, stable=True)[:, :k]
    weights = xp.take_along_axis(scores, chosen, axis=-1)
    if experts.normalize:
        weights = weights / xp.maximum(weights.sum(-1, keepdims=True) + router.sum_offset, router.least_sum)
    return chosen, weights * router.scale


def _sparse_mixed(xp: Any, logits: Any, jitter: float, k: int) -> tuple[Any, Any]:
    held, chosen, weights = logits, [], []
    for _ in range(k):
        top, place = held.max(-1, keepdims=True), held.argmax(-1)[:, None]
        far = (top - logits) / xp.maximum(abs(logits), top) > 2 * jitter
        powers = xp.where(far, 0, xp.exp(held - top))
        chosen.append(place)
        weights.append(xp.take_along_axis(powers, place, axis=-1) / powers.sum(-1, keepdims=True))
        held = xp.where(xp.arange(logits.shape[-1])[None] == place, -xp.inf, held)
    return xp.concatenate(chosen, axis=-1), xp.concatenate(weights, axis=-1)
