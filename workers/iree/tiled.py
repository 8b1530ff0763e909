"""The operations for a CPU: weights and cache are packed, and a layer is a few kernels of our own."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from workers.architectures.parts import Activation
from workers.checkpoint import ModelConfig
from workers.iree.kernels.arithmetic import Arithmetic
from workers.iree.kernels.attention import Attention
from workers.iree.kernels.code import LANES
from workers.iree.kernels.dot import product
from workers.iree.kernels.experts import combine, experts_down, experts_up
from workers.iree.kernels.gate import gate
from workers.iree.kernels.layer import Layer, Packings, layer
from workers.iree.kernels.linear import gated, linear, stride
from workers.iree.kernels.lookup import lookup
from workers.iree.kernels.norm import Norm, norm
from workers.iree.kernels.packed_experts import PackedExperts, packed_down, packed_up
from workers.iree.kernels.place import Heads
from workers.iree.kernels.place import Place as PlaceKernel
from workers.iree.kernels.product import Dot, Product
from workers.iree.kernels.rounding import Rounded, round_rows, rounded_rows
from workers.iree.kernels.routing import Mixture, group, route
from workers.iree.ops import Angles, Cache, Dense, Flow, Place, Shape
from workers.iree.quantized import Packed, Packing

CHAINED = 64
"""Rows of a decode graph up to which a layer is one kernel: the more rows, the less dispatches count."""


@dataclass(slots=True)
class TiledOps:
    """Packed weights and cache. Collects the kernels that it used in `bodies`, by name."""

    dtype: str
    arithmetic: Arithmetic
    dot: Dot = "plain"
    """For weights of few bits."""
    threads: int = 1
    """That share a kernel's work. They change how it is split, and no result."""
    pause: str = ""
    """How a core says that it waits (`kernels.chain`)."""
    bodies: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def planes(self) -> int:
        """Of activations that weights of few bits are multiplied by: float32 asks for what float32 would give."""
        return 3 if self.dtype == "float32" else 1

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
        out: jax.Array = _call(name, _floats(rows, table.inputs), which, table.data)
        return out

    def norm(
        self,
        x: jax.Array,
        delta: jax.Array | None,
        after: jax.Array | None,
        before: jax.Array | None,
        eps: float,
    ) -> tuple[jax.Array, jax.Array]:
        rows, width = x.shape
        kind = Norm(delta is not None, after is not None, before is not None)
        name = f"baton_norm_{rows}_{width}_{kind.delta:d}{kind.after:d}{kind.before:d}"
        self.bodies[name] = norm(name, rows, width, eps, self.arithmetic, kind)
        words = _words(rows, stride(width, self.arithmetic))
        if delta is None:
            return x, _call(name, words, x, after, before)
        out: tuple[jax.Array, jax.Array] = _call(name, (_floats(rows, width), words), x, delta, after, before)
        return out

    def linear(
        self,
        x: jax.Array,
        weight: jax.Array | Packed,
        outputs: int,
        bias: jax.Array | None = None,
        live: jax.Array | None = None,
    ) -> jax.Array:
        if isinstance(weight, Packed):
            return self._linear_packed(x, weight, outputs, bias, live)
        tiles, steps, _, k = weight.shape
        rows, inputs = x.shape[0], steps * k
        name = _named(f"baton_linear_{rows}_{tiles}_{inputs}", bias=bias, live=live)
        self.bodies[name] = linear(
            name,
            rows,
            tiles,
            inputs,
            self.arithmetic,
            bias=bias is not None,
            threads=self.threads,
            live=live is not None,
        )
        out: jax.Array = _call(name, _floats(rows, tiles * LANES), x, weight.reshape(tiles, -1), bias, live)
        return out if tiles * LANES == outputs else out[:, :outputs]

    def _linear_packed(
        self, x: jax.Array, weight: Packed, outputs: int, bias: jax.Array | None, live: jax.Array | None
    ) -> jax.Array:
        rows = x.shape[0]
        rounded, levels, sums = self._round(x, weight)
        tiled = Product(rounded, weight.data.shape[0] * LANES, weight.packing, self.dot, self.threads)
        name = _named(tiled.name, bias=bias, live=live)
        self.bodies[name] = product(name, tiled, bias=bias is not None, live=live is not None)
        out: jax.Array = _call(name, _floats(rows, tiled.outputs), levels, sums, weight.data, bias, live)
        return out[:, :outputs]

    def _round(self, x: jax.Array, weight: Packed) -> tuple[Rounded, jax.Array, jax.Array]:
        """An operand as a matrix of few bits wants it."""
        rounded = rounded_rows(x.shape[0], weight.inputs, weight.packing, self.arithmetic, self.planes)
        self.bodies[rounded.name] = round_rows(rounded)
        shapes = [(rounded.levels_shape, jnp.int32), (rounded.sums_shape, jnp.float32)]
        levels, sums = _call(rounded.name, [jax.ShapeDtypeStruct(shape, kind) for shape, kind in shapes], x)
        return rounded, levels, sums

    def gated(
        self,
        x: jax.Array,
        weight: jax.Array | Packed,
        inputs: int,
        ffn: int,
        activation: Activation,
        live: jax.Array | None = None,
    ) -> jax.Array:
        rows, tiles = x.shape[0], ffn // LANES
        words = _words(rows, stride(ffn, self.arithmetic))
        if isinstance(weight, Packed):
            name = f"baton_gate_{rows}_{ffn}"
            self.bodies[name] = gate(name, rows, ffn, self.arithmetic, activation)
            halves: jax.Array = _call(name, words, self.linear(x, weight, 2 * ffn, None, live))
            return halves
        name = _named(f"baton_gated_{rows}_{tiles}_{inputs}", live=live)
        self.bodies[name] = gated(
            name, rows, tiles, inputs, self.arithmetic, activation, threads=self.threads, live=live is not None
        )
        out: jax.Array = _call(name, words, x, weight.reshape(2 * tiles, -1), live)
        return out

    def experts(
        self,
        x: jax.Array,
        router: jax.Array,
        up: jax.Array | Packed,
        down: jax.Array | Packed,
        config: ModelConfig,
        live: jax.Array | None = None,
    ) -> jax.Array:
        m = mixture_of(config, x.shape[0])
        routed, combined = (f"baton_experts_{part}_{m.rows}" for part in ("route", "combine"))
        grouped = _named(f"baton_experts_group_{m.rows}", live=live)
        self.bodies |= {
            routed: route(routed, m),
            grouped: group(grouped, m, live=live is not None),
            combined: combine(combined, m),
        }
        per, lists = m.experts.per_token, (_numbers(m.pairs), *(_numbers(m.groups + 1) for _ in range(2)))
        logits = self.linear(x, router, m.experts.count, None, live)
        chosen, weights = _call(routed, (_words(m.rows, per), _floats(m.rows, per)), logits)
        places = _call(grouped, lists, chosen, live)
        mixed = self._experts_up(m, x, up, places, config.activation)
        added = self._experts_down(m, mixed, down, places)
        out: jax.Array = _call(combined, _floats(m.rows, m.hidden), added, weights)
        return out

    def _experts_up(
        self, m: Mixture, x: jax.Array, weight: jax.Array | Packed, places: list[jax.Array], activation: Activation
    ) -> jax.Array:
        name, e, operands = self._expert_operands(f"baton_experts_up_{m.rows}", m, x, weight)
        self.bodies[name] = (
            experts_up(name, m, self.arithmetic, activation, threads=self.threads)
            if e is None
            else packed_up(name, e, self.arithmetic, activation)
        )
        words = _words(m.pairs, stride(m.experts.ffn, self.arithmetic))
        out: jax.Array = _call(name, words, *operands, *places)
        return out

    def _experts_down(self, m: Mixture, x: jax.Array, weight: jax.Array | Packed, places: list[jax.Array]) -> jax.Array:
        name, e, operands = self._expert_operands(f"baton_experts_down_{m.rows}", m, x, weight)
        self.bodies[name] = (
            experts_down(name, m, self.arithmetic, threads=self.threads) if e is None else packed_down(name, e)
        )
        out: jax.Array = _call(name, _floats(m.pairs, m.hidden), *operands, *places)
        return out

    def _expert_operands(
        self, name: str, m: Mixture, x: jax.Array, weight: jax.Array | Packed
    ) -> tuple[str, PackedExperts | None, list[jax.Array]]:
        """The product's name, how its weights are packed where they are of few bits, and what it multiplies."""
        if not isinstance(weight, Packed):
            return name, None, [x, weight.reshape(len(weight), -1)]
        rounded, levels, sums = self._round(x, weight)
        packed = PackedExperts(m, rounded, weight.packing, self.dot, self.threads)
        return f"{name}_{weight.packing.name}", packed, [levels, sums, weight.data]

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
        kind = Layer(
            place=PlaceKernel(heads, self.arithmetic, config.rms_eps, config.head_norm),
            attention=self._attention(heads, number, config),
            hidden=config.hidden_size,
            ffn=config.ffn,
            eps=config.rms_eps,
            activation=config.activation,
            biases=(weights.qkv_bias is not None, weights.o_bias is not None),
            norms=(Norm(True, *there[:2]), Norm(True, *there[2:])),
            live=where.live is not None,
            packings=Packings([_packing(each) for each in matrices], self.dot, self.planes),
            pause=self.pause,
        )
        flags = "".join(str(int(each)) for each in (*kind.biases, *there))
        name = f"baton_layer_{heads.batch}_{kind.attention.window}_{heads.rotated}_{flags}{kind.packings.name}"
        name = _named(name, live=where.live)
        self.bodies[name] = layer(name, kind)
        qkv, o, up, down = (each.data if isinstance(each, Packed) else each.reshape(len(each), -1) for each in matrices)
        turns = (None, None) if angles is None else (angles.cos, angles.sin)
        operands = [h, x, where.live, qkv, weights.qkv_bias, *turns, where.slots, where.rows, _layer(number, cache)]
        operands += [*(weights.heads or ()), kv, o, weights.o_bias, *norms[:2], up, down, *norms[2:]]
        operands.append(jnp.zeros((kind.counters,), jnp.int32) if counts is None else counts)
        results = [
            _floats(*x.shape),
            _words(*h.shape),
            jax.ShapeDtypeStruct(kv.shape, kv.dtype),
            _numbers(kind.counters),
        ]
        done: Flow = tuple(_call(name, results, *operands))
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
        queries = _words(len(qkv), heads.queries * heads.head_dim // self.arithmetic.word)
        q, kv = _call(name, (queries, jax.ShapeDtypeStruct(kv.shape, kv.dtype)), *operands)
        return q, kv

    def attend(
        self, q: jax.Array, kv: jax.Array, cache: Cache, layer: int, config: ModelConfig, where: Place
    ) -> jax.Array:
        heads = _heads(cache, layer, config, where)
        kind = self._attention(heads, layer, config)
        name = f"baton_attention_{heads.batch}_{heads.tokens}_{kind.window}"
        words = _words(q.shape[0], stride(heads.queries * heads.head_dim, self.arithmetic))
        operands = (q, where.slots, where.rows, _layer(layer, cache), kv)
        if not kind.split:
            self.bodies[name] = kind.whole(name)
            out: jax.Array = _call(name, words, *operands)
            return out
        self.bodies |= {
            name + "_shared": kind.shared(name + "_shared"),
            name + "_joined": kind.joined(name + "_joined"),
        }
        sums = _call(name + "_shared", jax.ShapeDtypeStruct(kind.sums_shape, jnp.float32), *operands)
        joined: jax.Array = _call(name + "_joined", words, sums, where.rows)
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


def mixture_of(config: ModelConfig, rows: int) -> Mixture:
    assert config.experts is not None  # asked for by layers that have experts
    return Mixture(rows, config.hidden_size, config.experts)


def _numbers(count: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((count,), jnp.int32)


def _words(rows: int, width: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((rows, width), jnp.int32)


def _floats(rows: int, width: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((rows, width), jnp.float32)


def _named(name: str, **parts: jax.Array | None) -> str:
    """A kernel's name, which tells the operands that it may have from those that it has."""
    return name + "".join(f"_{part}" for part, operand in parts.items() if operand is not None)


def _call(name: str, results: Any, *operands: jax.Array | None) -> Any:
    """A kernel's call with the operands that there are; `lower` puts the kernel in its place."""
    return jax.ffi.ffi_call(name, results)(*(operand for operand in operands if operand is not None))
