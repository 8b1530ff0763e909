"""The attention of a tower's layer: keys and values of all patches are written first, then every block of patches
attends to those in its ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from workers.checkpoints.architectures.parts import HeadNorm
from workers.iree.kernels.attention.attention import attention
from workers.iree.kernels.attention.rope_and_cache import RopeAndCache, rope_and_cache
from workers.iree.kernels.attention.shape import CAPACITY_MULTIPLE, Attention, AttentionShape
from workers.iree.kernels.ir.arithmetic import row_stride
from workers.iree.lazy_jax import jax, jnp, lax
from workers.iree.model.kernel_calls import call, words
from workers.iree.model.ops import RopeAngles, Shape
from workers.iree.model.plain_ops import NEGATIVE, PlainOps, rotate
from workers.iree.model.tiled_ops import TiledOps
from workers.iree.model.tower.layout import TowerLayout

Norms: TypeAlias = "tuple[jax.Array, ...]"
"""The weights of the norms of a head of queries and of keys; empty for none."""


@dataclass(frozen=True, slots=True)
class TiledAttention:
    """Attention by the kernels of text, with a cache of one slot and one layer."""

    layout: TowerLayout
    ops: TiledOps
    block: int
    """Patches of a call."""
    patches: int
    """The most patches of an image."""

    @property
    def cache(self) -> Shape:
        """The shape of keys and values."""
        return self._shape.cache

    def write(
        self, qkv: jax.Array, angles: RopeAngles | None, norms: Norms, kv: jax.Array, rows: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Norm and rotate the heads of float32 [block, 3 * lanes of all heads], and write keys and values to `rows`,
        int32 [1, block]: the queries as `attend` takes them, and the cache."""
        config, shape = self.layout.config, self._shape
        norm: HeadNorm | None = "each" if config.qk_norm else None
        lanes = None if self.layout.lanes == config.head_dim else config.head_dim
        kind = RopeAndCache(shape, self.ops.arithmetic, config.eps, norm, lanes, value_norm=config.value_norm)
        name = f"baton_rope_and_cache_{self.block}"
        self.ops.add_kernel(name, rope_and_cache, kind)
        queries = words(self.block, shape.query_heads * shape.head_dim // self.ops.arithmetic.per_word)
        rope = () if angles is None else (angles.cos, angles.sin)
        operands = (qkv, *rope, *_place(rows), *norms, kv)
        q, kv = call(name, (queries, jax.ShapeDtypeStruct(kv.shape, kv.dtype)), *operands)
        return q, kv

    def attend(self, q: jax.Array, kv: jax.Array, ranges: jax.Array) -> jax.Array:
        """Attend to the patches of `ranges`, int32 [2, 1, block], the first and the last one -> an operand of width
        heads * lanes."""
        shape, arithmetic = self._shape, self.ops.arithmetic
        kind = Attention(shape, arithmetic, threads=self.ops.threads, ranges=True)
        name = f"baton_attention_{self.block}_ranges"
        self.ops.add_kernel(name, attention, kind)
        result = words(self.block, row_stride(shape.query_heads * shape.head_dim, arithmetic))
        out: jax.Array = call(name, result, q, *_place(ranges[0]), kv, ranges)
        return out

    @property
    def _shape(self) -> AttentionShape:
        config = self.layout.config
        capacity = -(-(self.patches + self.block) // CAPACITY_MULTIPLE) * CAPACITY_MULTIPLE
        return AttentionShape(
            layers=1,
            slots=1,
            query_heads=config.heads,
            kv_heads=config.heads,
            head_dim=self.layout.lanes,
            capacity=capacity,
            attended=capacity,
            batch=1,
            tokens=self.block,
            scale=config.scale,
            rope_dims=2 * self.layout.angles,
        )


def _place(rows: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the slot, the rows, and the layer of a cache that has one of each."""
    return jnp.zeros((1,), jnp.int32), rows, jnp.asarray([0, 1], jnp.int32)


@dataclass(frozen=True, slots=True)
class PlainAttention:
    """Attention in plain StableHLO, over the whole capacity under a mask. See `TiledAttention`."""

    layout: TowerLayout
    ops: PlainOps
    block: int
    patches: int

    @property
    def cache(self) -> Shape:
        config = self.layout.config
        return (2, config.heads, self.patches + self.block, config.head_dim)

    def write(
        self, qkv: jax.Array, angles: RopeAngles | None, norms: Norms, kv: jax.Array, rows: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        config = self.layout.config
        q, k, v = jnp.swapaxes(qkv.reshape(self.block, 3, config.heads, config.head_dim), 0, 1)
        if norms:
            q, k = (_unit(x, config.eps) * weight for x, weight in zip((q, k), norms, strict=True))
        if config.value_norm:
            v = _unit(v, config.eps)
        if angles is not None:
            q, k = rotate(q, angles), rotate(k, angles)
        new = jnp.swapaxes(jnp.stack([k, v]), 1, 2).astype(kv.dtype)
        zero = jnp.zeros((), jnp.int32)
        kv = lax.dynamic_update_slice(kv, new, (zero, zero, rows[0, 0], zero))
        return (q * np.float32(config.scale)).reshape(self.block, -1).astype(self.ops.dtype), kv

    def attend(self, q: jax.Array, kv: jax.Array, ranges: jax.Array) -> jax.Array:
        config = self.layout.config
        heads = jnp.swapaxes(q.reshape(self.block, config.heads, config.head_dim), 0, 1)
        scores = jnp.einsum("hqd,hkd->hqk", heads, kv[0], preferred_element_type=jnp.float32)
        at = jnp.arange(kv.shape[2], dtype=jnp.int32)
        seen = (at >= ranges[0].reshape(-1, 1)) & (at <= ranges[1].reshape(-1, 1))
        scores = jnp.where(seen, scores, NEGATIVE)
        weights = jnp.exp(scores - jnp.max(scores, -1, keepdims=True))
        values = weights.astype(self.ops.dtype)
        mixed = jnp.einsum("hqk,hkd->hqd", values, kv[1], preferred_element_type=jnp.float32)
        mixed = mixed / jnp.sum(weights, -1, keepdims=True)
        return jnp.swapaxes(mixed, 0, 1).reshape(self.block, -1).astype(self.ops.dtype)


def _unit(x: jax.Array, eps: float) -> jax.Array:
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + np.float32(eps))
