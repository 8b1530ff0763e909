"""The routing of a mixture of experts in numpy or JAX, written from transformers' routers."""

from typing import Any

from workers.checkpoints.architectures.parts import Experts


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
