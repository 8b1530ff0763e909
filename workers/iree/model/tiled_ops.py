"""The operations for a CPU: weights and cache are packed, and a layer is a few kernels of our own."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.kernels.attention.attention import Attention
from workers.iree.kernels.attention.rope_and_cache import Heads
from workers.iree.kernels.attention.rope_and_cache import Place as PlaceKernel
from workers.iree.kernels.fused_layer import Layer, Packings, layer
from workers.iree.kernels.ir.builder import LANES
from workers.iree.kernels.matmul.embedding import lookup
from workers.iree.kernels.matmul.linear import stride
from workers.iree.kernels.norm import Norm, norm
from workers.iree.model.kernel_calls import call, floats, named, numbers, words
from workers.iree.model.ops import Angles, Cache, Dense, Flow, Place, Shape
from workers.iree.model.packing import Packed, Packing
from workers.iree.model.tiled_matmuls import TiledProducts

CHAINED = 64
"""Rows of a decode graph up to which a layer is one kernel: the more rows, the less dispatches count."""


@dataclass(slots=True)
class TiledOps(TiledProducts):
    """Packed weights and cache."""

    pause: str = ""
    """How a core says that it waits (`kernels.chain`)."""

    def stored_shape(self, outputs: int, inputs: int) -> Shape:
        k = self.arithmetic.k
        return (-(-outputs // LANES), inputs // k, LANES, k)

    def store(self, matrix: NDArray[np.generic]) -> NDArray[np.generic]:
        return pack(matrix, self.arithmetic.k)

    def operand(self, rows: int, width: int) -> tuple[Shape, str]:
        return (rows, stride(width, self.arithmetic)), "int32"

    def rows(self, table: jax.Array | Packed, which: jax.Array) -> jax.Array:
        if not isinstance(table, Packed):
            return table[which].astype(jnp.float32)
        rows, tiles = len(which), table.data.shape[0]
        name = f"baton_lookup_{rows}_{tiles}_{table.inputs}_{table.packing.name}"
        self.bodies[name] = lookup(name, rows, tiles, table.inputs, table.packing)
        out: jax.Array = call(name, floats(rows, table.inputs), which, table.data)
        return out

    def norm(
        self,
        x: jax.Array,
        delta: jax.Array | None,
        after: jax.Array | None,
        before: jax.Array | None,
        eps: float,
        multiplier: float = 1.0,
    ) -> tuple[jax.Array, jax.Array]:
        rows, width = x.shape
        kind = Norm(delta is not None, after is not None, before is not None, multiplier)
        name = f"baton_norm_{rows}_{width}_{kind.delta:d}{kind.after:d}{kind.before:d}"
        self.bodies[name] = norm(name, rows, width, eps, self.arithmetic, kind)
        result = words(rows, stride(width, self.arithmetic))
        if delta is None:
            return x, call(name, result, x, after, before)
        out: tuple[jax.Array, jax.Array] = call(name, (floats(rows, width), result), x, delta, after, before)
        return out

    def layer(
        self,
        flow: Flow,
        weights: Dense,
        angles: Angles | None,
        cache: Cache,
        number: int,
        config: ModelConfig,
        where: Place,
    ) -> Flow | None:
        x, h, kv, counts = flow
        if len(x) > CHAINED or where.rows.shape[1] != 1:
            return None
        matrices = (weights.qkv, weights.o, weights.gate_up, weights.down)
        heads = _heads(cache, number, config, where)
        norms = [weights.after_attention, weights.before_mlp, weights.after_mlp, weights.following]
        there = [each is not None for each in norms]
        after_attention, after_mlp = (
            Norm(True, after, before, config.residual_multiplier) for after, before in (there[:2], there[2:])
        )
        kind = Layer(
            place=PlaceKernel(heads, self.arithmetic, config.rms_eps, config.head_norm),
            attention=self._attention(heads, number, config),
            hidden=config.hidden_size,
            ffn=config.ffn,
            eps=config.rms_eps,
            activation=config.activation,
            biases=(weights.qkv_bias is not None, weights.o_bias is not None),
            norms=(after_attention, after_mlp),
            live=where.live is not None,
            packings=Packings([_packing(each) for each in matrices], self.dot, self.planes),
            pause=self.pause,
        )
        flags = "".join(str(int(each)) for each in (*kind.biases, *there))
        name = f"baton_layer_{heads.batch}_{kind.attention.window}_{heads.rotated}_{flags}{kind.packings.name}"
        name = named(name, live=where.live)
        self.bodies[name] = layer(name, kind)
        qkv, o, up, down = (each.data if isinstance(each, Packed) else each.reshape(len(each), -1) for each in matrices)
        turns = (None, None) if angles is None else (angles.cos, angles.sin)
        operands = [h, x, where.live, qkv, weights.qkv_bias, *turns, where.slots, where.rows, _layer(number, cache)]
        operands += [*(weights.heads or ()), kv, o, weights.o_bias, *norms[:2], up, down, *norms[2:]]
        operands.append(jnp.zeros((kind.counters,), jnp.int32) if counts is None else counts)
        results = [
            floats(*x.shape),
            words(*h.shape),
            jax.ShapeDtypeStruct(kv.shape, kv.dtype),
            numbers(kind.counters),
        ]
        done: Flow = tuple(call(name, results, *operands))
        return done

    def place(
        self,
        qkv: jax.Array,
        angles: Angles | None,
        norms: tuple[jax.Array, jax.Array] | None,
        kv: jax.Array,
        cache: Cache,
        layer: int,
        config: ModelConfig,
        where: Place,
    ) -> tuple[jax.Array, jax.Array]:
        heads = _heads(cache, layer, config, where)
        kind = PlaceKernel(heads, self.arithmetic, config.rms_eps, config.head_norm)
        name = f"baton_place_{heads.batch}_{heads.tokens}_{heads.rotated}"
        self.bodies[name] = kind.function(name)
        turns = () if angles is None else (angles.cos, angles.sin)
        operands = (qkv, *turns, where.slots, where.rows, _layer(layer, cache), *(norms or ()), kv)
        queries = words(len(qkv), heads.queries * heads.head_dim // self.arithmetic.word)
        q, kv = call(name, (queries, jax.ShapeDtypeStruct(kv.shape, kv.dtype)), *operands)
        return q, kv

    def attend(
        self, q: jax.Array, kv: jax.Array, cache: Cache, layer: int, config: ModelConfig, where: Place
    ) -> jax.Array:
        heads = _heads(cache, layer, config, where)
        kind = self._attention(heads, layer, config)
        name = f"baton_attention_{heads.batch}_{heads.tokens}_{kind.window}"
        result = words(q.shape[0], stride(heads.queries * heads.head_dim, self.arithmetic))
        operands = (q, where.slots, where.rows, _layer(layer, cache), kv)
        if not kind.split:
            self.bodies[name] = kind.whole(name)
            out: jax.Array = call(name, result, *operands)
            return out
        self.bodies |= {
            name + "_shared": kind.shared(name + "_shared"),
            name + "_joined": kind.joined(name + "_joined"),
        }
        sums = call(name + "_shared", jax.ShapeDtypeStruct(kind.sums_shape, jnp.float32), *operands)
        joined: jax.Array = call(name + "_joined", result, sums, where.rows)
        return joined

    def _attention(self, heads: Heads, layer: int, config: ModelConfig) -> Attention:
        window, cap = config.plan[layer].window or 0, config.attention_cap or 0.0
        return Attention(heads, self.arithmetic, window, cap, self.threads)


def pack(matrix: NDArray[Any], k: int) -> NDArray[Any]:
    """[N, K] -> [ceil(N / 16), K / k, 16, k]; missing rows are zero. K must be a multiple of k."""
    rows, columns = matrix.shape
    if rows % LANES:
        matrix = np.concatenate([matrix, np.zeros((-rows % LANES, columns), matrix.dtype)])
    return np.ascontiguousarray(matrix.reshape(-1, LANES, columns // k, k).transpose(0, 2, 1, 3))


def _heads(cache: Cache, layer: int, config: ModelConfig, where: Place) -> Heads:
    batch, tokens = where.rows.shape
    rope = config.plan[layer].rope
    return Heads(
        layers=cache.layers,
        slots=cache.slots,
        queries=config.heads,
        heads=cache.heads,
        head_dim=cache.head_dim,
        capacity=cache.capacity,
        attended=cache.attended,
        batch=batch,
        tokens=tokens,
        scale=config.attention_scale,
        rotated=0 if rope is None else config.ropes[rope].dims,
    )


def _packing(matrix: jax.Array | Packed) -> Packing | None:
    return matrix.packing if isinstance(matrix, Packed) else None


def _layer(number: int, cache: Cache) -> jax.Array:
    """Which layer it is, for kernels that all of them share."""
    return jnp.asarray([number, cache.layers], jnp.int32)
