"""The operations for a CPU: weights and KV cache are packed, and the kernels of a layer are written here."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.kernels.attention.attention import attention, merge_attention, split_attention
from workers.iree.kernels.attention.rope_and_cache import RopeAndCache, rope_and_cache
from workers.iree.kernels.attention.shape import Attention, AttentionShape
from workers.iree.kernels.fused_layer import FusedLayer, LayerPackings, fused_layer
from workers.iree.kernels.ir.arithmetic import row_stride
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.matmul.embedding import embedding
from workers.iree.kernels.matmul.packing import Packing, pack_matrix
from workers.iree.kernels.rowwise.norm import Norm, norm
from workers.iree.lazy_jax import jax, jnp
from workers.iree.model.kernel_calls import call, floats, named, numbers, words
from workers.iree.model.kv_layout import KvLayout
from workers.iree.model.latent.tiled_latent import TiledLatent
from workers.iree.model.ops import DenseWeights, LayerNormWeights, LayerState, NormWeights, RopeAngles, Shape, StepRows
from workers.iree.model.packed_matrix import PackedMatrix, Weight
from workers.iree.model.width_padding import WidthPadding

FUSED_MAX_ROWS = 64
"""Rows of a decode graph up to which a layer is one fused kernel: the more rows, the less dispatches cost."""


@dataclass(slots=True)
class TiledOps(TiledLatent):
    """`workers.iree.model.ops.Ops` with packed weights and KV cache, for weights that are whole vectors wide."""

    pause: str = ""
    """The intrinsic of a core that waits, see `FusedKernel`."""
    padding: WidthPadding | None = None
    """The padding of a model whose widths are not whole vectors. What the operations take is padded."""

    def stored_shape(self, outputs: int, inputs: int) -> Shape:
        k = self.arithmetic.k
        return (-(-outputs // LANES), inputs // k, LANES, k)

    def store(self, matrix: NDArray[np.generic]) -> NDArray[np.generic]:
        return pack_matrix(matrix, self.arithmetic.k)

    def operand(self, rows: int, width: int) -> tuple[Shape, str]:
        return (rows, row_stride(width, self.arithmetic)), "int32"

    def values(self, hidden: int) -> int:
        return self._hidden_values or hidden

    def embedding(self, table: Weight, tokens: jax.Array) -> jax.Array:
        if not isinstance(table, PackedMatrix):
            return table[tokens].astype(jnp.float32)
        rows, tiles = len(tokens), table.data.shape[0]
        name = f"baton_embedding_{rows}_{tiles}_{table.inputs}_{table.packing.name}"
        self.add_kernel(name, embedding, rows, tiles, table.inputs, table.packing)
        out: jax.Array = call(name, floats(rows, table.inputs), tokens, table.data)
        return out

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
        rows, width = x.shape
        bias, centred = None, isinstance(before, LayerNormWeights)
        if isinstance(before, LayerNormWeights):
            before, bias = before.weight, before.bias
        there = (delta is not None, after is not None, before is not None)
        values = self._per_layer_values if per_layer else self._hidden_values
        kind = Norm(*there, multiplier, values, centred, bias is not None)
        flags = "".join(str(int(each)) for each in (*there, *([kind.bias] if centred else [])))
        flags += "_per_layer" if per_layer else ""
        name = named(f"baton_norm_{rows}_{width}_{flags}", live=live)
        self.add_kernel(name, norm, rows, width, eps, self.arithmetic, kind, live=live is not None)
        result = words(rows, row_stride(width, self.arithmetic))
        if delta is None:
            return x, call(name, result, x, after, before, bias, live)
        out: tuple[jax.Array, jax.Array] = call(
            name, (floats(rows, width), result), x, delta, after, before, bias, live
        )
        return out

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
        x, h, kv, counters = state
        if len(x) > FUSED_MAX_ROWS or step.rows.shape[1] != 1:
            return None
        kind, norms = self._layer_kind(
            weights, self._attention_shape(cache, number, config, step), number, config, step
        )
        flags = "".join(str(int(each)) for each in (*kind.biases, *(norm is not None for norm in norms)))
        shape = kind.attention.shape
        name = f"baton_layer_{shape.batch}_{kind.attention.window}_{shape.rope_dims}_{flags}{kind.packings.name}"
        name = named(name + cache.suffix, live=step.live)
        self.add_kernel(name, fused_layer, kind)
        qkv, o, up, down = (
            each.data if isinstance(each, PackedMatrix) else each.reshape(len(each), -1) for each in _matrices(weights)
        )
        rope = (None, None) if angles is None else self.padded_angles(angles, config, number)
        operands = [h, x, step.live, qkv, weights.qkv_bias, *rope, step.slots, step.rows]
        operands.append(_layer_of(number, cache, config))
        operands += [*(weights.heads or ()), kv, o, weights.o_bias, *norms[:2], up, down, *norms[2:]]
        operands.append(jnp.zeros((kind.barrier_counters,), jnp.int32) if counters is None else counters)
        results = [
            floats(*x.shape),
            words(*h.shape),
            jax.ShapeDtypeStruct(kv.shape, kv.dtype),
            numbers(kind.barrier_counters),
        ]
        done: LayerState = tuple(call(name, results, *operands))
        return done

    def _layer_kind(
        self, weights: DenseWeights, shape: AttentionShape, number: int, config: ModelConfig, step: StepRows
    ) -> tuple[FusedLayer, list[jax.Array | None]]:
        """Return what a fused layer is made of, and the weights of its norms."""
        norms = [weights.after_attention, weights.before_mlp, weights.after_mlp, weights.following]
        there = [each is not None for each in norms]
        after_attention, after_mlp = (
            Norm(True, after, before, config.residual_multiplier, self._hidden_values)
            for after, before in (there[:2], there[2:])
        )
        kind = FusedLayer(
            rope_and_cache=self._rope_and_cache(shape, number, config),
            attention=self._attention(shape, number, config),
            hidden=config.hidden_size,
            ffn=config.ffn,
            eps=config.rms_eps,
            activation=config.activation,
            biases=(weights.qkv_bias is not None, weights.o_bias is not None),
            norms=(after_attention, after_mlp),
            live=step.live is not None,
            packings=LayerPackings([_packing(each) for each in _matrices(weights)], self.integer_dots, self.limbs),
            pause=self.pause,
        )
        return kind, norms

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
        shape = self._attention_shape(cache, layer, config, step)
        kind = self._rope_and_cache(shape, layer, config)
        name = f"baton_rope_and_cache_{shape.batch}_{shape.tokens}_{shape.rope_dims}{cache.suffix}"
        name = named(name if kind.writes else f"{name}_queries", live=step.live)
        self.add_kernel(name, rope_and_cache, kind, live=step.live is not None)
        rope = () if angles is None else self.padded_angles(angles, config, layer)
        place = _layer_of(layer, cache, config)
        queries = words(len(qkv), shape.query_heads * shape.head_dim // self.arithmetic.per_word)
        if not kind.writes:
            (q,) = call(name, (queries,), qkv, *rope, step.slots, step.rows, place, *(norms or ())[:1], step.live)
            return q, kv
        operands = (qkv, *rope, step.slots, step.rows, place, *(norms or ()), kv, step.live)
        q, kv = call(name, (queries, jax.ShapeDtypeStruct(kv.shape, kv.dtype)), *operands)
        return q, kv

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
        shape = self._attention_shape(cache, layer, config, step)
        kind, live = self._attention(shape, layer, config), step.live is not None
        ranges = None if step.ends is None else _ranges(step.rows, step.ends, kind.window, cache.attended)
        if ranges is not None:
            kind = replace(kind, window=0, ranges=True)
        name = f"baton_attention_{shape.batch}_{shape.tokens}_{kind.window}{cache.suffix}"
        name = named(name, ranges=ranges, live=step.live)
        result = words(q.shape[0], row_stride(shape.query_heads * shape.value_dim, self.arithmetic))
        operands = (q, step.slots, step.rows, _layer_of(layer, cache, config), kv, ranges)
        if not kind.split:
            self.add_kernel(name, attention, kind, live=live)
            out: jax.Array = call(name, result, *operands, sinks, step.live)
            return out
        self.add_kernel(name + "_split", split_attention, kind, live=live)
        self.add_kernel(name + "_merge", merge_attention, kind, live=live)
        partials = call(name + "_split", jax.ShapeDtypeStruct(kind.partials_shape, jnp.float32), *operands, step.live)
        merged: jax.Array = call(name + "_merge", result, partials, step.rows, sinks, step.live)
        return merged

    def _attention(self, shape: AttentionShape, layer: int, config: ModelConfig) -> Attention:
        window, softcap = config.plan[layer].window or 0, config.attention_cap or 0.0
        return Attention(shape, self.arithmetic, window, softcap, self.threads, config.sinks)

    def _rope_and_cache(self, shape: AttentionShape, layer: int, config: ModelConfig) -> RopeAndCache:
        values = None if self.padding is None else self.padding.head_of(config.plan[layer]).size
        centred, writes = config.head_norm is not None and config.norm_kind == "layer", layer == config.kv_owner(layer)
        return RopeAndCache(
            shape, self.arithmetic, config.rms_eps, config.head_norm, values, centred, writes, config.value_norm
        )

    def _attention_shape(self, cache: KvLayout, layer: int, config: ModelConfig, step: StepRows) -> AttentionShape:
        batch, tokens = step.rows.shape
        rope = config.plan[layer].rope
        return AttentionShape(
            layers=cache.layers,
            slots=cache.slots,
            query_heads=config.heads,
            kv_heads=cache.heads,
            head_dim=cache.head_dim,
            capacity=cache.capacity,
            attended=cache.attended,
            batch=batch,
            tokens=tokens,
            scale=config.attention_scale,
            rope_dims=0 if rope is None else self._rotated_lanes(config.ropes[rope].dims, layer, config),
            bits=cache.bits,
            value_width=cache.value_width,
            ring=cache.ring,
        )

    @property
    def _hidden_values(self) -> int | None:
        """The values of a row of the residual stream that are not padding; None is all of them."""
        return None if self.padding is None else self.padding.hidden.size

    @property
    def _per_layer_values(self) -> int | None:
        """The values of one layer's own embedding that are not padding; None is all of them."""
        return None if self.padding is None or self.padding.per_layer is None else self.padding.per_layer.size

    def _rotated_lanes(self, lanes: int, layer: int, config: ModelConfig) -> int:
        return lanes if self.padding is None else 2 * self.padding.head_of(config.plan[layer]).parts[0][1]

    def padded_angles(self, angles: RopeAngles, config: ModelConfig, layer: int) -> tuple[jax.Array, jax.Array]:
        """Return cosines and sines for the padded half of the lanes that a layer rotates."""
        missing = self._rotated_lanes(2 * angles.cos.shape[-1], layer, config) // 2 - angles.cos.shape[-1]
        if not missing:
            return angles.cos, angles.sin
        cos, sin = (jnp.pad(each, ((0, 0), (0, missing))) for each in (angles.cos, angles.sin))
        return cos, sin


def _matrices(weights: DenseWeights) -> tuple[Weight, Weight, Weight, Weight]:
    return weights.qkv, weights.o, weights.gate_up, weights.down


def _packing(matrix: Weight) -> Packing | None:
    return matrix.packing if isinstance(matrix, PackedMatrix) else None


def _ranges(rows: jax.Array, ends: jax.Array, window: int, attended: int) -> jax.Array:
    """Return the first and the last position that each token sees, int32 [2, batch, tokens]: those in its window up to
    its end. A padding token sees what its sequence's first one does, and one position where that is padding as well."""
    real = rows < attended
    rows, lasts = (jnp.where(real, each, jnp.where(real[:, :1], each[:, :1], 0)) for each in (rows, ends - 1))
    firsts = jnp.maximum(rows - (window - 1), 0) if window else jnp.zeros_like(rows)
    return jnp.stack([firsts, lasts])


def _layer_of(number: int, cache: KvLayout, config: ModelConfig) -> jax.Array:
    """Return the place of a layer in the cache and the number of layers in it, for kernels that they share."""
    return jnp.asarray([config.kv_index(number), cache.layers], jnp.int32)
