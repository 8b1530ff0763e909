"""The operations for every device but a CPU: plain StableHLO, which attends to the whole capacity under a mask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.architectures.parts import Activation
from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.lazy_jax import jax, jnp, lax
from workers.iree.model.kv_layout import KvLayout
from workers.iree.model.latent.plain_latent import PlainLatent
from workers.iree.model.ops import (
    DenseWeights,
    ExpertBiases,
    LayerNormWeights,
    LayerState,
    NormWeights,
    RopeAngles,
    Shape,
    StepRows,
)
from workers.iree.model.packed_matrix import PackedMatrix, Weight
from workers.iree.model.plain_recurrence import PlainRecurrence
from workers.precision import MIN_TOP, SCALE_BYTES, max_level

NEGATIVE = np.float32(-1e30)
ACTIVATIONS: Mapping[Activation, Callable[[jax.Array], jax.Array]] = {
    "silu": lambda x: jax.nn.silu(x),
    "gelu_tanh": lambda x: jax.nn.gelu(x),
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "quick_gelu": lambda x: x * jax.nn.sigmoid(np.float32(1.702) * x),
    "relu2": lambda x: jnp.square(jnp.maximum(x, 0)),
}


class MaterializingNumpy:
    """`jax.numpy`, except that gathered rows and indices are in memory before they are reduced.

    A reduction that computes them itself has vectors of `index` in memory that its threads share, which IREE cannot
    compile to SPIR-V.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)

    @staticmethod
    def arange(*bounds: int, **how: Any) -> jax.Array:
        indices: jax.Array = lax.optimization_barrier(jnp.arange(*bounds, **how))
        return indices

    @staticmethod
    def take_along_axis(values: jax.Array, indices: jax.Array, axis: int) -> jax.Array:
        gathered: jax.Array = lax.optimization_barrier(jnp.take_along_axis(values, indices, axis=axis))
        return gathered


@dataclass(frozen=True, slots=True)
class PlainOps(PlainRecurrence, PlainLatent):
    """`workers.iree.model.ops.Ops` with weights [outputs, inputs] and the rows of the KV cache in order."""

    dtype: str

    def stored_shape(self, outputs: int, inputs: int) -> Shape:
        return (outputs, inputs)

    def store(self, matrix: NDArray[np.generic]) -> NDArray[np.generic]:
        return matrix

    def operand(self, rows: int, width: int) -> tuple[Shape, str]:
        return (rows, width), self.dtype

    def values(self, hidden: int) -> int:
        return hidden

    def embedding(self, table: Weight, tokens: jax.Array) -> jax.Array:
        if isinstance(table, PackedMatrix):
            raise TypeError("plain StableHLO has no packed weights")
        return table[tokens].astype(jnp.float32)

    def norm(
        self,
        x: jax.Array,
        delta: jax.Array | None,
        after: jax.Array | None,
        before: NormWeights | None,
        eps: float,
        multiplier: float = 1.0,
        live: jax.Array | None = None,
        *,
        per_layer: bool = False,
    ) -> tuple[jax.Array, jax.Array]:
        if delta is not None:
            added = delta if after is None else _unit(delta, eps) * after
            x = x + (added if multiplier == 1 else added * np.float32(multiplier))
        return x, _normed(x, before, eps).astype(self.dtype)

    def linear(
        self,
        x: jax.Array,
        weight: Weight,
        outputs: int,
        bias: jax.Array | None = None,
        live: jax.Array | None = None,
    ) -> jax.Array:
        if isinstance(weight, PackedMatrix):
            raise TypeError("plain StableHLO has no products with packed weights")
        out = jnp.einsum("mk,nk->mn", x, weight, preferred_element_type=jnp.float32)
        return out if bias is None else out + bias

    def mlp(
        self,
        x: jax.Array,
        gate_up: Weight,
        down: Weight,
        hidden: int,
        ffn: int,
        activation: Activation,
        live: jax.Array | None = None,
    ) -> jax.Array:
        both = self.linear(x, gate_up, 2 * ffn)
        gate, up = both[:, :ffn], both[:, ffn:]
        return self.linear((ACTIVATIONS[activation](gate) * up).astype(self.dtype), down, hidden)

    def activate(
        self, x: jax.Array, activation: Activation, *, gated: bool, live: jax.Array | None = None
    ) -> jax.Array:
        gate, up = jnp.split(x, 2, axis=1) if gated else (x, None)
        activated = ACTIVATIONS[activation](gate)
        return (activated if up is None else activated * up).astype(self.dtype)

    def experts(
        self,
        x: jax.Array,
        router: jax.Array,
        up: Weight,
        down: Weight,
        config: ModelConfig,
        live: jax.Array | None = None,
        shared: jax.Array | None = None,
        gate: jax.Array | None = None,
        bias: jax.Array | None = None,
        biases: ExpertBiases | None = None,
        *,
        read: jax.Array | None = None,
        scales: jax.Array | None = None,
    ) -> jax.Array:
        raise NotImplementedError("experts beside the kernels for CPUs")  # refused when the plan is made

    def fused_layer(
        self,
        state: LayerState,
        weights: DenseWeights,
        angles: RopeAngles | None,
        cache: KvLayout,
        number: int,
        config: ModelConfig,
        step: StepRows,
    ) -> LayerState | None:
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
        *heads, v = _heads(qkv, cache, config)
        if layer != config.kv_owner(layer):
            heads = heads[:1]
        if norms is not None:
            heads = [_norm_heads(x, weight, config) for x, weight in zip(heads, norms, strict=False)]
        if angles is not None:
            heads = [rotate(x, angles) for x in heads]
        q = heads[0] * np.float32(config.attention_scale)
        if len(heads) == 1:
            return q.astype(self.dtype), kv
        if config.value_norm:
            v = _unit(v, config.rms_eps)
        head = step.slots[:, None] * cache.heads + jnp.arange(cache.heads, dtype=jnp.int32)
        flat = kv.reshape(-1, cache.row_width)
        for part, new in enumerate((heads[1], v)):
            base = (2 * config.kv_index(layer) + part) * cache.slots * cache.heads
            at = (base + head[:, None, :]) * cache.capacity + step.rows[:, :, None]
            # Behind a barrier: the CUDA backend cannot distribute a scatter that its indices are fused into.
            at, rows = lax.optimization_barrier((at.reshape(-1), self._stored(new, part, cache)))
            flat = flat.at[at].set(rows, mode="promise_in_bounds", unique_indices=True)
        return q.astype(self.dtype), flat.reshape(kv.shape)

    def _stored(self, new: jax.Array, part: int, cache: KvLayout) -> jax.Array:
        """Return keys (part 0) or values (1), float32 [rows, heads, lanes], as rows of the cache: each with its scale
        behind it if it is quantized, and zeros behind those that are narrower."""
        lanes = cache.lane_elements[part]
        missing = cache.row_width - cache.scale_elements - lanes
        if not cache.bits:
            stored = new.astype(self.dtype).reshape(-1, lanes)
            return jnp.pad(stored, ((0, 0), (0, missing))) if missing else stored
        top = jnp.maximum(jnp.max(jnp.abs(new), -1, keepdims=True), np.float32(MIN_TOP))
        most = max_level(cache.bits)
        levels = jnp.round(new * (most / top)).astype(jnp.int8)
        if cache.bits == 4:  # a lane of the first half and one of the second share a byte
            levels = (levels[..., :lanes] & 15) | (levels[..., lanes:] << 4)
        if missing:
            levels = jnp.pad(levels, ((0, 0), (0, 0), (0, missing)))
        scales = lax.bitcast_convert_type(top / most, jnp.int8).reshape(*new.shape[:-1], SCALE_BYTES)
        return jnp.concatenate([levels, scales], -1).reshape(-1, cache.row_width)

    def attend(
        self,
        q: jax.Array,
        kv: jax.Array,
        cache: KvLayout,
        layer: int,
        config: ModelConfig,
        step: StepRows,
        sinks: jax.Array | None = None,
    ) -> jax.Array:
        batch, tokens = step.rows.shape
        group = config.heads // cache.heads
        mine = kv[config.kv_index(layer)]
        if batch == 1:
            # Behind a barrier: SPIR-V cannot be made of a product that reads through the slot's number.
            mine = lax.optimization_barrier(lax.dynamic_slice_in_dim(mine, step.slots[0], 1, axis=1))
        elif batch < cache.slots:
            mine = mine[:, step.slots]
        shape = (2, batch, cache.heads, cache.capacity, cache.row_width)
        mine = mine.reshape(shape)[:, :, :, : cache.attended]
        scales = None
        if cache.bits:
            scales = lax.bitcast_convert_type(mine[..., max(cache.lane_elements) :], jnp.float32)[:, :, :, None]
        if cache.value_dim == cache.head_dim:
            mine = self._lanes(mine, 0, cache)
            keys, values = mine[0], mine[1]
        else:
            keys, values = (self._lanes(mine[part], part, cache) for part in (0, 1))
        # A key/value head's queries of all positions are the rows of one product, and the rows come before the columns:
        # with the columns first, IREE stores results of an NVIDIA GPU's matrix instructions in each other's places.
        q = jnp.swapaxes(q.reshape(batch, tokens, cache.heads, group, cache.head_dim), 1, 2)
        q = q.reshape(batch, cache.heads, tokens * group, cache.head_dim)
        score = _product(q, keys, 3)
        if scales is not None:
            score = score * scales[0]
        if config.attention_cap is not None:
            score = jnp.tanh(score / np.float32(config.attention_cap)) * np.float32(config.attention_cap)
        ends = step.rows if step.ends is None else step.ends - 1
        own, last = (jnp.repeat(each, group, axis=1)[:, None, :, None] for each in (step.rows, ends))
        at = jnp.arange(cache.attended, dtype=jnp.int32)
        seen, window = at <= last, config.plan[layer].window
        if window is not None:
            seen = seen & (at > own - window)
        score = jnp.where(seen, score, NEGATIVE)
        top = jnp.max(score, -1, keepdims=True)
        if sinks is not None:  # rows are tokens of a KV head's queries
            sink = jnp.tile(sinks.reshape(cache.heads, 1, group), (1, tokens, 1)).reshape(1, cache.heads, -1, 1)
            top = jnp.maximum(top, sink)
        weight = jnp.exp(score - top)
        mass = jnp.sum(weight, -1)
        if sinks is not None:
            mass = mass + jnp.exp(sink - top)[..., 0]
        if scales is not None:
            weight = jnp.where(seen, weight * scales[1], 0)
        # Weights times small scales are below the smallest numbers of float16.
        kind = jnp.float32 if scales is not None and self.dtype == "float16" else self.dtype
        mixed = _product(weight.astype(kind), values.astype(kind), 2) / mass[..., None]
        mixed = jnp.swapaxes(mixed.reshape(batch, cache.heads, tokens, group, cache.value_dim), 1, 2)
        return mixed.reshape(batch * tokens, -1).astype(self.dtype)

    def _lanes(self, stored: jax.Array, part: int, cache: KvLayout) -> jax.Array:
        """Return the numbers, or the levels in the model's type, of keys (part 0) or values (1) without their scales,
        and without what fills those that are narrower."""
        lanes = cache.lane_elements[part]
        if not cache.bits:
            return stored if stored.shape[-1] == lanes else stored[..., :lanes]
        return _levels(stored[..., :lanes], cache).astype(self.dtype)


def _heads(qkv: jax.Array, cache: KvLayout, config: ModelConfig) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Split rows into the heads of queries, keys and values, each [rows, heads, lanes]; a row may be of queries
    alone."""
    queries, keys = config.heads * cache.head_dim, cache.heads * cache.head_dim
    if cache.value_dim == cache.head_dim and qkv.shape[1] > queries:
        q, k, v = jnp.split(
            qkv.reshape(len(qkv), -1, cache.head_dim), (config.heads, config.heads + cache.heads), axis=1
        )
        return q, k, v
    parts = (qkv[:, :queries], qkv[:, queries : queries + keys], qkv[:, queries + keys :])
    widths = (cache.head_dim, cache.head_dim, cache.value_dim)
    q, k, v = (part.reshape(len(qkv), -1, width) for part, width in zip(parts, widths, strict=True))
    return q, k, v


def _product(rows: jax.Array, others: jax.Array, axis: int) -> jax.Array:
    """Products [B, H, M, K] x [B, H, N, K] (axis 3) or [B, H, K, N] (axis 2), as float32 [B, H, M, N]."""
    dimensions = (((3,), (axis,)), ((0, 1), (0, 1)))
    return lax.dot_general(rows, others, dimensions, preferred_element_type=jnp.float32)


def _levels(stored: jax.Array, cache: KvLayout) -> jax.Array:
    """Return the levels of the last axis of `stored`, int8."""
    if cache.bits == 8:
        return stored
    return jnp.concatenate([(stored << 4) >> 4, stored >> 4], -1)


def _unit(x: jax.Array, eps: float) -> jax.Array:
    """x / sqrt(mean(x^2) + eps) over the last dimension."""
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + np.float32(eps))


def _normed(x: jax.Array, weights: NormWeights | None, eps: float) -> jax.Array:
    if weights is None:
        return x
    if not isinstance(weights, LayerNormWeights):
        return _unit(x, eps) * weights
    normed = _unit(_centred(x), eps) * weights.weight
    return normed if weights.bias is None else normed + weights.bias


def _centred(x: jax.Array) -> jax.Array:
    """x - mean(x) over the last dimension."""
    return x - jnp.mean(x, -1, keepdims=True)


def _norm_heads(x: jax.Array, weight: jax.Array, config: ModelConfig) -> jax.Array:
    """float32 [rows, heads, head_dim], normed head by head or all of a row's heads together."""
    if config.norm_kind == "layer":
        x = _centred(x)
    if config.head_norm != "all":
        return _unit(x, config.rms_eps) * weight.reshape(-1, x.shape[-1])
    return (_unit(x.reshape(len(x), -1), config.rms_eps) * weight).reshape(x.shape)


def rotate(x: jax.Array, angles: RopeAngles) -> jax.Array:
    """RoPE on the first lanes of x, float32 [rows, heads, head_dim]: its pairs are the halves of the rotated lanes."""
    half = angles.cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = angles.cos[:, None, :], angles.sin[:, None, :]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)
