"""A decoder as one JAX function over rows of a shared cache, as its `ModelConfig` describes it.

One step computes `tokens` rows of each of `batch` slots: tokens = 1 is a decode step, batch = 1 is a
chunk of a prompt. The keys and values of the rows are written before they are attended to, so that a row's result
depends on what is in its slot up to that row and on nothing else: not on the other rows of the step, nor on whether
the rows before came in the same step.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.architectures.parts import LayerConfig
from workers.checkpoints.architectures.tensors import tensors
from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.model.ops import Angles, Cache, Dense, Flow, Ops, Place, Shape

ROUTER = "router"
"""Never of few bits: it is small, and what it chooses is all or nothing."""
EXPERTS = (ROUTER, "experts_gate_up", "experts_down")
"""What a layer's mixture is made of."""
Parameters = dict[str, Any]
"""By name: an array, or where `Parameter.few_bits` a `quantized.Packed`."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One stored tensor of the archive and the checkpoint's tensors that it is made of, stacked along the outputs."""

    name: str
    sources: tuple[tuple[str, Shape], ...]
    matrix: bool
    """Stored as `Ops.store` does; everything else is kept as it is."""
    dtype: str
    few_bits: bool
    """What it is used for takes weights of few bits."""
    offset: float
    """Added to every value."""

    @property
    def rows(self) -> int:
        return sum(shape[0] for _, shape in self.sources)


def parameters(config: ModelConfig, dtype: str) -> list[Parameter]:
    """Every parameter of the model: matrices in `dtype`, norms and biases in float32."""
    out = []
    for tensor in tensors(config):
        matrix = tensor.matrix and tensor.name != "embedding"
        kind = dtype if tensor.matrix else "float32"
        few_bits = tensor.matrix and tensor.name.rpartition(".")[2] != ROUTER
        out.append(Parameter(tensor.name, tensor.sources, matrix, kind, few_bits, tensor.offset))
    return out


def rope_frequencies(config: ModelConfig, context: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Radians per position of each pair of lanes and the factor of its cos and sin, for slots of `context` rows.

    float32 [angles] each, where angles = rotations * rotated lanes / 2, one rotation after the other.
    """
    each = [rope.frequencies(context) for rope in config.ropes]
    factors = [np.full(len(frequencies), factor, np.float32) for frequencies, factor in each]
    return np.concatenate([frequencies for frequencies, _ in each]), np.concatenate(factors)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What one step is about: `tokens` rows of each of `batch` slots."""

    tokens: jax.Array
    """int32 [batch, tokens]."""
    cos: jax.Array
    sin: jax.Array
    """float32 [batch, tokens, angles]: the rows' RoPE angles, in the order of `rope_frequencies`."""
    place: Place

    def angles(self, config: ModelConfig, layer: LayerConfig) -> Angles | None:
        """Those of the layer's rotation."""
        if layer.rope is None:
            return None
        half = config.ropes[layer.rope].dims // 2
        mine = slice(layer.rope * half, (layer.rope + 1) * half)
        return Angles(*(all_.reshape(-1, all_.shape[-1])[:, mine] for all_ in (self.cos, self.sin)))


def forward(
    config: ModelConfig, ops: Ops, cache: Cache, w: Parameters, inputs: Inputs, kv: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """All layers: the normed hidden rows, an operand of batch * tokens rows, and the cache with the new rows."""
    x, h = ops.norm(embed(config, ops, w, inputs), None, None, w.get("0.norm_attention"), config.rms_eps)
    flow: Flow = (x, h, kv, None)
    for number, layer in enumerate(config.plan):
        following = w["norm"] if number == config.layers - 1 else w.get(f"{number + 1}.norm_attention")
        angles, where, whole = inputs.angles(config, layer), inputs.place, None
        if not layer.experts:
            dense = dense_weights(config, w, number, following)
            whole = ops.layer(flow, dense, angles, cache, number, config, where)
        flow = whole or by_parts(config, ops, w, number, flow, following, angles, cache, where)
    return flow[1], flow[2]


def dense_weights(config: ModelConfig, w: Parameters, number: int, following: jax.Array | None) -> Dense:
    """Those of a layer without experts; `following` is the norm of what comes after it."""
    name = f"{number}."
    return Dense(
        qkv=w[name + "qkv"],
        qkv_bias=w.get(name + "qkv_bias"),
        heads=head_norms(config, w, name),
        o=w[name + "o"],
        o_bias=w.get(name + "o_bias"),
        after_attention=w.get(name + "norm_attention_out"),
        before_mlp=w.get(name + "norm_mlp"),
        gate_up=w[name + "gate_up"],
        down=w[name + "down"],
        after_mlp=w.get(name + "norm_mlp_out"),
        following=following,
    )


def head_norms(config: ModelConfig, w: Parameters, name: str) -> tuple[jax.Array, jax.Array] | None:
    return (w[name + "q_norm"], w[name + "k_norm"]) if config.head_norm is not None else None


def by_parts(
    config: ModelConfig,
    ops: Ops,
    w: Parameters,
    number: int,
    flow: Flow,
    following: jax.Array | None,
    angles: Angles | None,
    cache: Cache,
    where: Place,
) -> Flow:
    """A layer, one operation after the other."""
    x, h, kv, counts = flow
    name, layer, live, eps = f"{number}.", config.plan[number], where.live, config.rms_eps
    width = (config.heads + 2 * config.kv_heads) * config.head_dim
    qkv = ops.linear(h, w[name + "qkv"], width, w.get(name + "qkv_bias"), live)
    q, kv = ops.place(qkv, angles, head_norms(config, w, name), kv, cache, number, config, where)
    mixed = ops.attend(q, kv, cache, number, config, where)
    delta = ops.linear(mixed, w[name + "o"], config.hidden_size, w.get(name + "o_bias"), live)
    multiplier = config.residual_multiplier
    x, h = ops.norm(x, delta, w.get(name + "norm_attention_out"), w.get(name + "norm_mlp"), eps, multiplier)
    delta = mlp(config, ops, w, name, layer, h, live)
    x, h = ops.norm(x, delta, w.get(name + "norm_mlp_out"), following, eps, multiplier)
    return x, h, kv, counts


def embed(config: ModelConfig, ops: Ops, w: Parameters, inputs: Inputs) -> jax.Array:
    """float32 [rows, hidden]."""
    x = ops.rows(w["embedding"], inputs.tokens.reshape(-1))
    if config.embedding_scale == 1:
        return x
    kind = jnp.dtype(ops.dtype) if config.rounds_embedding_scale else np.float32
    return x * np.asarray(config.embedding_scale, kind).astype(np.float32)


def mlp(
    config: ModelConfig, ops: Ops, w: Parameters, name: str, layer: LayerConfig, h: jax.Array, live: jax.Array | None
) -> jax.Array:
    """What the second half of a layer adds to an operand's rows: float32 [rows, hidden]."""
    if layer.experts:
        router, up, down = (w[name + part] for part in EXPERTS)
        return ops.experts(h, router, up, down, config, live)
    h = ops.gated(h, w[name + "gate_up"], config.hidden_size, config.ffn, config.activation, live)
    return ops.linear(h, w[name + "down"], config.hidden_size, None, live)


def head(config: ModelConfig, ops: Ops, w: Parameters, hidden: jax.Array, live: jax.Array | None = None) -> jax.Array:
    """Logits of normed hidden rows, an operand, or of the `live` ones (see `Place`): float32 [rows, vocab]."""
    # A tied head of few bits is stored once.
    matrix = w.get("head", w["embedding"])
    logits, cap = ops.linear(hidden, matrix, config.vocab_size, None, live), config.logit_cap
    if config.logits_scaling != 1:
        logits = logits / np.float32(config.logits_scaling)
    return logits if cap is None else jnp.tanh(logits / np.float32(cap)) * np.float32(cap)
