"""The operations of an encoder beside those of decoders: a norm behind the residual sum, and attention without a cache
that is kept.

On a CPU the kernels of decoders compute attention: keys and values of a sequence are written to a scratch cache, and
each token attends up to the last one. Their blocks begin at the sequence's first token, so that a row has the same bits
whatever else is in the call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from workers.checkpoints.encoders.config import EncoderConfig, EncoderLayer
from workers.iree.kernels.attention.attention import attention
from workers.iree.kernels.attention.rope_and_cache import RopeAndCache, rope_and_cache
from workers.iree.kernels.attention.shape import CAPACITY_MULTIPLE, Attention, AttentionShape
from workers.iree.kernels.ir.arithmetic import row_stride
from workers.iree.kernels.rowwise.norm import Norm, norm
from workers.iree.lazy_jax import jax, jnp, lax
from workers.iree.model.kernel_calls import call, floats, named, words
from workers.iree.model.ops import LayerNormWeights, NormWeights, Ops, RopeAngles, Shape
from workers.iree.model.plain_ops import NEGATIVE, PlainOps, rotate
from workers.iree.model.tiled_ops import TiledOps

HeadNorms: TypeAlias = "tuple[jax.Array, jax.Array] | None"
"""The weights of the RMS norms of queries and keys, float32 [lanes of a head] each."""


@dataclass(frozen=True, slots=True)
class EncoderRows:
    """The rows of a call: `blocks` runs of `tokens` neighbours of one sequence each."""

    slots: jax.Array
    """int32 [blocks]: the sequence of each, by its place in the scratch cache."""
    own: jax.Array
    """int32 [blocks, tokens]: the position of each token in its sequence; `capacity` or more is padding."""
    last: jax.Array
    """int32 [blocks, tokens]: the position of the last token of its sequence; for padding as in `own`."""
    capacity: int
    """Tokens of the longest sequence."""
    sequences: int
    """Most sequences of a call."""
    live: jax.Array | None
    """int32 [1]: how many rows are not padding, whole blocks and the first ones. None is all."""


class EncoderOps(Ops, Protocol):
    """`workers.iree.model.ops.Ops`, and what encoders need beside it."""

    def scratch_shape(self, config: EncoderConfig, capacity: int, sequences: int) -> Shape:
        """Return the shape of the scratch cache of a call; of one element where there is none."""

    def normed(
        self,
        x: jax.Array,
        delta: jax.Array | None,
        weights: NormWeights,
        eps: float,
        live: jax.Array | None,
        after: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Return the norm of x + delta, float32 [rows, width], and the same as an operand. With the weight `after`
        delta's RMS norm is added. Padding rows are undefined."""

    def attend_both_ways(
        self,
        qkv: jax.Array,
        angles: RopeAngles | None,
        heads: HeadNorms,
        scratch: jax.Array,
        layer: EncoderLayer,
        config: EncoderConfig,
        rows: EncoderRows,
    ) -> tuple[jax.Array, jax.Array]:
        """Attend from float32 [rows, qkv_width] of queries, keys and values -> an operand of the queries' width, and
        the scratch cache."""


class TiledEncoderOps(TiledOps):
    """The operations for a CPU."""

    __slots__ = ()

    def scratch_shape(self, config: EncoderConfig, capacity: int, sequences: int) -> Shape:
        """See `EncoderOps.scratch_shape`. Padding is written behind the rows that are attended to."""
        held = -(-capacity // CAPACITY_MULTIPLE) * CAPACITY_MULTIPLE + CAPACITY_MULTIPLE
        return (1, 2, sequences, config.kv, held * config.head_dim)

    def normed(
        self,
        x: jax.Array,
        delta: jax.Array | None,
        weights: NormWeights,
        eps: float,
        live: jax.Array | None,
        after: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """See `EncoderOps.normed`."""
        rows, width = x.shape
        centred = isinstance(weights, LayerNormWeights)
        weight, bias = (weights.weight, weights.bias) if isinstance(weights, LayerNormWeights) else (weights, None)
        biased = bias is not None
        kind = Norm(delta is not None, after is not None, True, centred=centred, bias=biased, replaces=True)
        name = f"baton_replacing_norm_{rows}_{width}_{int(biased)}{'' if centred else '_rms'}"
        name = named(name, delta=delta, after=after, live=live)
        self.add_kernel(name, norm, rows, width, eps, self.arithmetic, kind, live=live is not None)
        results = (floats(rows, width), words(rows, row_stride(width, self.arithmetic)))
        out: tuple[jax.Array, jax.Array] = call(name, results, x, delta, after, weight, bias, live)
        return out

    def attend_both_ways(
        self,
        qkv: jax.Array,
        angles: RopeAngles | None,
        heads: HeadNorms,
        scratch: jax.Array,
        layer: EncoderLayer,
        config: EncoderConfig,
        rows: EncoderRows,
    ) -> tuple[jax.Array, jax.Array]:
        """See `EncoderOps.attend_both_ways`."""
        shape = self._shape(scratch, angles, config, rows)
        live = rows.live is not None
        store = RopeAndCache(shape, self.arithmetic, config.eps, None if heads is None else "each")
        name = f"baton_encoder_rope_and_cache_{shape.batch}_{shape.capacity}_{shape.rope_dims}"
        name = named(name, live=rows.live)
        self.add_kernel(name, rope_and_cache, store, live=live)
        queries = words(len(qkv), config.query_width // self.arithmetic.per_word)
        cosines = () if angles is None else (angles.cos, angles.sin)
        place = jnp.asarray([0, 1], jnp.int32)
        results = (queries, jax.ShapeDtypeStruct(scratch.shape, scratch.dtype))
        norms = () if heads is None else heads
        q, scratch = call(name, results, qkv, *cosines, rows.slots, rows.own, place, *norms, scratch, rows.live)
        near = layer.window is not None
        kind = Attention(shape, self.arithmetic, layer.window or 0, threads=self.threads, around=near)
        name = f"baton_encoder_attention_{shape.batch}_{shape.capacity}_{kind.window}_{shape.rope_dims}"
        name = named(name, live=rows.live)
        self.add_kernel(name, attention, kind, live=live)
        result = words(len(qkv), row_stride(config.query_width, self.arithmetic))
        operands = (q, rows.slots, rows.last, place, scratch, rows.own if near else None, rows.live)
        mixed: jax.Array = call(name, result, *operands)
        return mixed, scratch

    def _shape(
        self, scratch: jax.Array, angles: RopeAngles | None, config: EncoderConfig, rows: EncoderRows
    ) -> AttentionShape:
        blocks, tokens = rows.own.shape
        return AttentionShape(
            layers=1,
            slots=rows.sequences,
            query_heads=config.heads,
            kv_heads=config.kv,
            head_dim=config.head_dim,
            capacity=scratch.shape[-1] // config.head_dim,
            attended=rows.capacity,
            batch=blocks,
            tokens=tokens,
            scale=config.attention_scale,
            rope_dims=0 if angles is None else 2 * angles.cos.shape[-1],
        )


class PlainEncoderOps(PlainOps):
    """The operations for other devices, where a block has all tokens of a sequence."""

    __slots__ = ()

    def scratch_shape(self, config: EncoderConfig, capacity: int, sequences: int) -> Shape:
        """See `EncoderOps.scratch_shape`."""
        return (1,)

    def normed(
        self,
        x: jax.Array,
        delta: jax.Array | None,
        weights: NormWeights,
        eps: float,
        live: jax.Array | None,
        after: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """See `EncoderOps.normed`."""
        if delta is not None:
            x = x + (delta if after is None else _unit(delta, eps) * after)
        if not isinstance(weights, LayerNormWeights):
            out = _unit(x, eps) * weights
            return out, out.astype(self.dtype)
        centred = x - jnp.mean(x, -1, keepdims=True)
        scale = lax.rsqrt(jnp.mean(centred * centred, -1, keepdims=True) + np.float32(eps))
        out = centred * scale * weights.weight
        out = out if weights.bias is None else out + weights.bias
        return out, out.astype(self.dtype)

    def attend_both_ways(
        self,
        qkv: jax.Array,
        angles: RopeAngles | None,
        heads: HeadNorms,
        scratch: jax.Array,
        layer: EncoderLayer,
        config: EncoderConfig,
        rows: EncoderRows,
    ) -> tuple[jax.Array, jax.Array]:
        """See `EncoderOps.attend_both_ways`."""
        blocks, tokens = rows.own.shape
        each, lanes, group = config.kv * config.head_dim, config.head_dim, config.heads // config.kv
        split = jnp.split(qkv, [config.query_width, config.query_width + each], -1)
        q, k, v = (part.reshape(len(qkv), -1, lanes) for part in split)
        if heads is not None:
            q, k = _unit(q, config.eps) * heads[0], _unit(k, config.eps) * heads[1]
        if angles is not None:
            q, k = rotate(q, angles), rotate(k, angles)
        if group > 1:
            k, v = jnp.repeat(k, group, 1), jnp.repeat(v, group, 1)
        shape = (blocks, tokens, config.heads, lanes)
        q, k, v = (part.reshape(shape).swapaxes(1, 2).astype(self.dtype) for part in (q, k, v))
        score = jnp.einsum("bhmd,bhnd->bhmn", q, k, preferred_element_type=jnp.float32)
        score = score * np.float32(config.attention_scale)
        at = jnp.arange(tokens, dtype=jnp.int32)
        seen = at <= rows.last[:, :1, None]
        if layer.window is not None:
            seen = seen & (jnp.abs(at[:, None] - at[None, :]) <= layer.window)
        score = jnp.where(seen[:, None], score, NEGATIVE)
        weight = jnp.exp(score - jnp.max(score, -1, keepdims=True))
        mass = jnp.sum(weight, -1, keepdims=True)
        mixed = jnp.einsum("bhmn,bhnd->bhmd", weight.astype(self.dtype), v, preferred_element_type=jnp.float32) / mass
        return mixed.swapaxes(1, 2).reshape(len(qkv), -1).astype(self.dtype), scratch


def _unit(x: jax.Array, eps: float) -> jax.Array:
    """x / sqrt(mean(x^2) + eps) over the last dimension."""
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + np.float32(eps))
