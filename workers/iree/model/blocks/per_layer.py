"""Embeddings of each layer's own, and what follows a layer's MLP: the block that they gate, and the layer's factor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.lazy_jax import jax, jnp
from workers.iree.model.ops import NormWeights, Ops


def per_layer_inputs(
    config: ModelConfig,
    ops: Ops,
    w: Mapping[str, Any],
    tokens: jax.Array,
    x: jax.Array,
    live: jax.Array | None,
    *,
    with_rows: bool = False,
) -> jax.Array | None:
    """Return what gates the block of each layer, float32 [rows, layers, width]: the tokens' own embeddings, and a
    projection of the model's, float32 [rows, hidden]. Rows without a token, those below 0, have the embeddings of the
    padding token, as in transformers. None if the model has none."""
    own = config.per_layer
    if own is None:
        return None
    rows, width = len(x), config.layers * own.width
    _, h = ops.norm(x, None, None, None, config.rms_eps, live=live)
    projected = ops.linear(h, w["per_layer_projection"], width, None, live)
    projected = projected * np.float32(ops.values(config.hidden_size) ** -0.5)
    if with_rows:
        tokens = jnp.where(tokens < 0, own.pad, tokens)
    embedded = ops.embedding(w["per_layer_embedding"], tokens)
    embedded = embedded * np.asarray(own.scale, jnp.dtype(ops.dtype)).astype(np.float32)
    both, _ = ops.norm(
        embedded.reshape(rows * config.layers, own.width),
        projected.reshape(rows * config.layers, own.width),
        w["per_layer_norm"],
        None,
        config.rms_eps,
        live=None if live is None else live * config.layers,
        per_layer=True,
    )
    return (both * np.float32(2**-0.5)).reshape(rows, config.layers, own.width)


def end_of_layer(
    config: ModelConfig,
    ops: Ops,
    w: Mapping[str, Any],
    number: int,
    x: jax.Array,
    delta: jax.Array,
    following: NormWeights | None,
    live: jax.Array | None,
    own: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """Add what a layer's MLP gives, then the block that the layer's `own` embeddings gate, float32 [rows, layers,
    width], and multiply by the layer's factor: the hidden rows, and their norm as an operand."""
    name, eps = f"{number}.", config.rms_eps
    x, h = ops.norm(x, delta, w.get(name + "norm_mlp_out"), None, eps, config.residual_multiplier, live)
    if own is not None:
        gate = ops.linear(h, w[name + "per_layer_gate"], own.shape[-1], None, live)
        both = jnp.concatenate([gate, own[:, number]], axis=1)
        activated = ops.activate(both, config.activation, gated=True, live=live)
        added = ops.linear(activated, w[name + "per_layer_out"], config.hidden_size, None, live)
        x, _ = ops.norm(x, added, w[name + "norm_per_layer"], None, eps, config.residual_multiplier, live)
    if config.layer_scalars:
        x = x * w[name + "layer_scalar"]
    return ops.norm(x, None, None, following, eps, live=live)
