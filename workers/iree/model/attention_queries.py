"""The queries of a model's layers, as its graph computes them: what the scores of sparse prefill start from."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from workers.checkpoints.architectures.parts import full_layers
from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.lazy_jax import jax, jnp
from workers.iree.model.decoder import Parameters, StepInputs, forward
from workers.iree.model.kv_layout import CacheLayout, KvLayout
from workers.iree.model.ops import LayerState, Ops, RopeAngles, StepRows
from workers.iree.model.plain_ops import rotate
from workers.iree.model.tiled_ops import TiledOps


def attention_queries(
    config: ModelConfig, ops: TiledOps, cache: CacheLayout, w: Parameters, inputs: StepInputs, kv: tuple[jax.Array, ...]
) -> tuple[list[jax.Array], tuple[jax.Array, ...]]:
    """Compute rows, and return the queries of each layer without a window, rotated and scaled, float32 [rows, heads,
    lanes], and the arrays of the cache with the new rows. Lanes are padded as in the cache, and may differ between
    layers."""
    tap = _QueryTap(ops)
    _, kv, *_ = forward(config, cast(Ops, tap), cache, w, inputs, kv)
    return [tap.queries[number] for number in full_layers(config.plan)], kv


class _QueryTap:
    """The operations of a device, which keeps the queries of each layer on the way."""

    def __init__(self, ops: TiledOps) -> None:
        self.queries: dict[int, jax.Array] = {}
        self._ops = ops

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def fused_layer(self, *_: object) -> LayerState | None:
        """Return None: the queries of a fused layer do not leave its kernel."""
        return None

    def rope_and_cache(
        self,
        qkv: jax.Array,
        angles: RopeAngles | None,
        norms: tuple[jax.Array, jax.Array] | None,
        kv: jax.Array,
        cache: KvLayout,
        layer: int,
        config: ModelConfig,
        step: StepRows,
    ) -> tuple[jax.Array, jax.Array]:
        """See `Ops.rope_and_cache`."""
        q = qkv[:, : config.heads * cache.head_dim].reshape(len(qkv), config.heads, cache.head_dim)
        if norms is not None:
            q = self._normed(q, norms[0], config, layer)
        if angles is not None:
            q = rotate(q, RopeAngles(*self._ops.padded_angles(angles, config, layer)))
        self.queries[layer] = q * np.float32(config.attention_scale)
        return self._ops.rope_and_cache(qkv, angles, norms, kv, cache, layer, config, step)

    def _normed(self, q: jax.Array, weight: jax.Array, config: ModelConfig, layer: int) -> jax.Array:
        """Return the norm of queries [rows, heads, lanes], whose padded lanes are zeros, head by head or of all heads
        together."""
        padding = self._ops.padding
        values = q.shape[-1] if padding is None else padding.head_of(config.plan[layer]).size
        together = config.head_norm == "all"
        axes, count = ((1, 2), values * config.heads) if together else ((2,), values)
        mean = jnp.sum(q, axes, keepdims=True) / count if config.norm_kind == "layer" else jnp.zeros((), q.dtype)
        variance = jnp.sum(q * q, axes, keepdims=True) / count - mean * mean
        return (q - mean) * jax.lax.rsqrt(variance + config.rms_eps) * weight.reshape(1, -1, q.shape[-1])
