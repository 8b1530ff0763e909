"""The head for multi-token prediction: a layer that predicts the token after the next one.

It gets the hidden row of a token and the embedding of the token after it, each normed, side by side and projected. As
in MiMo (https://arxiv.org/abs/2505.07608) and Qwen3.5. The keys and values of the layer are the last ones of the cache.
"""

from __future__ import annotations

from dataclasses import replace

from workers.checkpoints.architectures.parts import LayerConfig
from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.lazy_jax import jax, jnp
from workers.iree.model.decoder import Parameters, StepInputs, embed, layer_of, queries_and_cache
from workers.iree.model.kv_layout import CacheLayout, replaced
from workers.iree.model.ops import Ops


def mtp_forward(
    config: ModelConfig,
    ops: Ops,
    cache: CacheLayout,
    w: Parameters,
    inputs: StepInputs,
    hidden: jax.Array,
    kv: tuple[jax.Array, ...],
) -> tuple[jax.Array, tuple[jax.Array, ...], jax.Array]:
    """Compute the head for `hidden`, float32 [rows, hidden], and the tokens after these rows: its normed hidden rows as
    an operand, the cache, and the same rows in float32."""
    config, number = _with_layer(config), config.layers
    x, h = _projected(config, ops, w, number, inputs, hidden)
    following = w[f"{number}.norm_final"]
    angles = inputs.angles(config, config.plan[number])
    group = config.kv_group(number)
    x, h, array, _ = layer_of(
        config, ops, w, number, (x, h, kv[group], None), following, angles, cache.groups[group], inputs.step
    )
    return h, replaced(kv, group, array), _norm(x, following, config.rms_eps, ops.values(config.hidden_size))


def mtp_cache(
    config: ModelConfig,
    ops: Ops,
    cache: CacheLayout,
    w: Parameters,
    inputs: StepInputs,
    hidden: jax.Array,
    kv: tuple[jax.Array, ...],
) -> tuple[jax.Array, ...]:
    """Return the cache with the keys and values of the head's rows, as `mtp_forward` writes them."""
    config, number = _with_layer(config), config.layers
    _, h = _projected(config, ops, w, number, inputs, hidden)
    angles = inputs.angles(config, config.plan[number])
    group = config.kv_group(number)
    _, array = queries_and_cache(config, ops, w, number, h, kv[group], angles, cache.groups[group], inputs.step)
    return replaced(kv, group, array)


def _with_layer(config: ModelConfig) -> ModelConfig:
    """Return the model with the head as its last layer."""
    return replace(config, plan=(*config.plan, LayerConfig(experts=config.experts is not None)))


def _projected(
    config: ModelConfig, ops: Ops, w: Parameters, number: int, inputs: StepInputs, hidden: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the input of the layer, and its norm as an operand."""
    name, eps, live = f"{number}.", config.rms_eps, inputs.step.live
    values = ops.values(config.hidden_size)
    sides = [
        _norm(hidden, w[name + "norm_hidden"], eps, values),
        _norm(embed(config, ops, w, inputs), w[name + "norm_token"], eps, values),
    ]
    if config.mtp_names is not None and config.mtp_names.token_first:
        sides.reverse()
    _, both = ops.norm(jnp.concatenate(sides, axis=1), None, None, None, eps, live=live)
    x = ops.linear(both, w[name + "input"], config.hidden_size, None, live)
    return ops.norm(x, None, None, w[name + "norm_attention"], eps, live=live)


def _norm(x: jax.Array, weight: jax.Array, eps: float, values: int) -> jax.Array:
    """Return the RMS norm of rows with so many values that are not padding."""
    mean = jnp.sum(x * x, axis=-1, keepdims=True) / values
    return x * jax.lax.rsqrt(mean + eps) * weight
