"""A mixture of experts beside the MLP of a layer, Gemma 4's: three norms of the same rows, one of each result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.lazy_jax import jax, jnp
from workers.iree.model.ops import Ops


def add_experts(
    config: ModelConfig,
    ops: Ops,
    w: Mapping[str, Any],
    name: str,
    x: jax.Array,
    delta: jax.Array,
    live: jax.Array | None,
) -> jax.Array:
    """Return the norm of what the MLP computes, `delta`, plus that of what the experts compute of the rows `x` of the
    residual stream: float32 [rows, hidden] each.

    The router reads the rows' RMS norm, whose weight is divided by the square root of the width.
    """
    eps = config.rms_eps
    router_norm = w[name + "router_norm"] * np.float32(ops.values(config.hidden_size) ** -0.5)
    _, routed = ops.norm(x, None, None, router_norm, eps, live=live)
    _, h = ops.norm(x, None, None, w[name + "norm_experts"], eps, live=live)
    router, up, down = (w[name + part] for part in ("router", "experts_gate_up", "experts_down"))
    added = ops.experts(h, router, up, down, config, live, read=routed, scales=w[name + "expert_scales"])
    zeros = jnp.zeros_like(delta)
    dense, _ = ops.norm(zeros, delta, w[name + "norm_dense_out"], None, eps, live=live)
    both, _ = ops.norm(dense, added, w[name + "norm_experts_out"], None, eps, live=live)
    return both
