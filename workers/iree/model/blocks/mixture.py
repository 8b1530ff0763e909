"""A mixture of experts in place of the MLP of a layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workers.checkpoints.architectures.parts import Experts
from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.lazy_jax import jax
from workers.iree.model.ops import ExpertBiases, Ops


def mixture(
    config: ModelConfig, ops: Ops, w: Mapping[str, Any], name: str, h: jax.Array, live: jax.Array | None
) -> jax.Array:
    """Return what the mixture of experts of the layer `name` adds to an operand's rows: float32 [rows, hidden].

    Experts of latents (NVIDIA's LatentMoE, transformers' `NemotronHMoE`) compute a projection of the rows, and their
    sum is projected back; the router and the shared expert read the rows.
    """
    experts = config.experts
    assert experts is not None  # a layer has experts only where the model has
    gate_up = "gate_up" if experts.gated else "up"
    router, up, down = (w[name + part] for part in ("router", f"experts_{gate_up}", "experts_down"))
    shared, gate = _shared_expert(config, experts, ops, w, name, h, live)
    bias, biases = w.get(name + "router_correction"), _biases(experts, w, name)
    if not experts.latent:
        return ops.experts(h, router, up, down, config, live, shared, gate, bias, biases)
    width, eps = experts.latent, config.rms_eps
    latents = ops.first_columns(ops.linear(h, w[name + "experts_in"], width, None, live), width, None, eps, live)
    mixed = ops.experts(latents, router, up, down, config, live, None, None, bias, biases, read=h)
    mixed = ops.first_columns(mixed, width, None, eps, live)
    added = ops.linear(mixed, w[name + "experts_out"], config.hidden_size, None, live)
    return added if shared is None else added + shared


def _biases(experts: Experts, w: Mapping[str, Any], name: str) -> ExpertBiases | None:
    """Return the biases of the mixture of experts of the layer `name`; None where a model has none."""
    if not experts.biases:
        return None
    return ExpertBiases(*(w[f"{name}{part}_bias"] for part in ("router", "experts_gate_up", "experts_down")))


def _shared_expert(
    config: ModelConfig,
    experts: Experts,
    ops: Ops,
    w: Mapping[str, Any],
    name: str,
    h: jax.Array,
    live: jax.Array | None,
) -> tuple[jax.Array | None, jax.Array | None]:
    """Return what the shared expert computes of an operand's rows, float32 [rows, hidden], and the logits of its gate,
    float32 [rows, 1]; None where a model has none."""
    ffn, hidden, activation = experts.shared_ffn, config.hidden_size, config.activation
    if not ffn:
        return None, None
    down = w[name + "shared_down"]
    if experts.gated:
        added = ops.mlp(h, w[name + "shared_gate_up"], down, hidden, ffn, activation, live)
    else:
        up = ops.linear(h, w[name + "shared_up"], ffn, None, live)
        added = ops.linear(ops.activate(up, activation, gated=False, live=live), down, hidden, None, live)
    return added, ops.linear(h, w[name + "shared_gate"], 1, None, live) if experts.shared_gate else None
