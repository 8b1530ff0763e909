"""A decoder as one JAX function over the rows of a step and the KV cache, as its `ModelConfig` describes it.

One step computes `tokens` rows of each of `batch` slots: tokens = 1 is a decode step, batch = 1 is a chunk of a prompt.
The keys and values of the rows are written before they are attended to, so that a row's result depends on what is in
its slot up to that row and on nothing else: not on the other rows of the step, nor on whether the rows before came in
the same step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.architectures.parts import LatentAttention, LayerConfig
from workers.checkpoints.architectures.row_order import HeadPart, RowsOrder
from workers.checkpoints.architectures.tensors import tensors
from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.lazy_jax import jax, jnp
from workers.iree.model.blocks.experts_beside_mlp import add_experts
from workers.iree.model.blocks.mixture import mixture
from workers.iree.model.blocks.per_layer import end_of_layer, per_layer_inputs
from workers.iree.model.kv_layout import CacheLayout, KvLayout, replaced
from workers.iree.model.ops import (
    DenseWeights,
    LayerNormWeights,
    LayerState,
    MambaWeights,
    NormWeights,
    Ops,
    Recurrence,
    RopeAngles,
    Shape,
    StepRows,
    Taps,
)

ROUTER = "router"
PRECISE = (ROUTER, "shared_gate", "delta_gates", "latent_keys", "latent_values")
"""Never quantized: they are small, and an error changes which experts are chosen, how much the shared one adds, how
long a state is kept, or all heads' keys and values (docs/adr/0135)."""
TAPS = ("conv_taps", "delta_taps", "mamba_taps")
"""Stored as [taps, channels]; checkpoints have [channels, 1, taps]."""
TABLES = ("embedding", "per_layer_embedding")
"""Stored in rows, which are looked up."""
Parameters = dict[str, Any]
"""By name: an array, or a `PackedMatrix` where the parameter is quantized."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor of the weight archive, and the checkpoint's tensors that it is made of, stacked along the outputs."""

    name: str
    sources: tuple[tuple[str, Shape], ...]
    matrix: bool
    """Stored by `Ops.store`; everything else is kept as it is."""
    dtype: str
    quantizable: bool
    """It may be stored quantized."""
    offset: float
    """Added to every value."""
    orders: tuple[RowsOrder | None, ...] = ()
    """The order in which the rows of each source are read; empty for the stored order of all."""
    flat: bool = False
    """A vector, whatever the shape of its sources."""
    part: HeadPart | None = None
    """See `Tensor`."""

    @property
    def shape(self) -> Shape:
        if self.part is not None:
            return self.part.shape(self.sources[0][1])
        if self.flat:
            return (sum(math.prod(shape) for _, shape in self.sources),)
        return (sum(shape[0] for _, shape in self.sources), *self.sources[0][1][1:])

    @property
    def taps(self) -> bool:
        """It has the weights of a convolution's taps, see `TAPS`."""
        return self.name.rpartition(".")[2] in TAPS


def parameters(config: ModelConfig, dtype: str) -> list[Parameter]:
    """Return every parameter of the model: matrices in `dtype`, norms and biases in float32."""
    out = []
    for tensor in tensors(config):
        matrix = tensor.matrix and tensor.name not in TABLES
        kind = dtype if tensor.matrix else "float32"
        quantizable = tensor.matrix and tensor.name.rpartition(".")[2] not in PRECISE
        how = (tensor.sources, matrix, kind, quantizable, tensor.offset, tensor.orders, tensor.flat, tensor.part)
        out.append(Parameter(tensor.name, *how))
    return out


def rope_frequencies(config: ModelConfig, context: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the radians per position of each pair of lanes, and the factor of its cos and sin, for a context.

    float32 [angles] each, where angles = rotations * rotated lanes / 2, one rotation after the other.
    """
    each = [rope.frequencies(context) for rope in config.ropes]
    factors = [np.full(len(frequencies), factor, np.float32) for frequencies, factor in each]
    return np.concatenate([frequencies for frequencies, _ in each]), np.concatenate(factors)


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The inputs of one step: `tokens` rows of each of `batch` slots."""

    tokens: jax.Array
    """int32 [batch, tokens]."""
    cos: jax.Array
    sin: jax.Array
    """float32 [batch, tokens, angles]: the rows' RoPE angles, in the order of `rope_frequencies`."""
    step: StepRows
    embeddings: jax.Array | None = None
    """float32 [batch, tokens, parts * hidden]: the embeddings of rows whose token is -1, and in further parts what is
    added to them behind the first layers (deep stack, https://arxiv.org/abs/2406.04334)."""
    bidirectional: Literal["none", "all", "windowed"] = "none"
    """The layers that attend up to `StepRows.ends`; the others attend up to each row."""

    def angles(self, config: ModelConfig, layer: LayerConfig) -> RopeAngles | None:
        """Return the angles of the layer's rotation; None for a layer without positions."""
        if layer.rope is None:
            return None
        first = sum(rope.dims for rope in config.ropes[: layer.rope]) // 2
        mine = slice(first, first + config.ropes[layer.rope].dims // 2)
        return RopeAngles(*(all_.reshape(-1, all_.shape[-1])[:, mine] for all_ in (self.cos, self.sin)))

    def part(self, config: ModelConfig, number: int) -> jax.Array | None:
        """Return a part of the embeddings, float32 [rows, hidden]; None if there are not so many."""
        if self.embeddings is None:
            return None
        parts = self.embeddings.reshape(self.tokens.size, -1, config.hidden_size)
        return parts[:, number] if number < parts.shape[1] else None

    def rows_of(self, layer: LayerConfig) -> StepRows:
        """Return the rows as a layer attends from them."""
        applies = self.bidirectional == "all" or (self.bidirectional == "windowed" and layer.window is not None)
        return self.step if applies else replace(self.step, ends=None)


def forward(
    config: ModelConfig,
    ops: Ops,
    cache: CacheLayout,
    w: Parameters,
    inputs: StepInputs,
    kv: tuple[jax.Array, ...],
    states: jax.Array | None = None,
    places: jax.Array | None = None,
) -> tuple[jax.Array, tuple[jax.Array, ...], jax.Array, jax.Array | None]:
    """Compute all layers: the normed hidden rows, an operand of batch * tokens rows, the arrays of the cache with the
    new rows, the hidden rows before the norm, float32 [rows, hidden], and the recurrent states after the rows.

    `states` are float32 [states, values], where the model has layers with a state, and `places` as in `Recurrence`.
    """
    first = norm_weights(config, ops, w, "0.norm_attention")
    x, h = ops.norm(embed(config, ops, w, inputs), None, None, first, config.rms_eps, live=inputs.step.live)
    tokens, with_rows = inputs.tokens.reshape(-1), inputs.embeddings is not None
    own = per_layer_inputs(config, ops, w, tokens, x, inputs.step.live, with_rows=with_rows)
    counters: tuple[jax.Array | None, ...] = (None,) * len(kv)
    for number, layer in enumerate(config.plan):
        last = number == config.layers - 1
        following = norm_weights(config, ops, w, "norm" if last else f"{number + 1}.norm_attention")
        if layer.kind == "none":
            delta = mlp(config, ops, w, f"{number}.", layer, h, inputs.step.live)
            x, h = add(config, ops, x, delta, following, inputs.step.live)
        elif states is not None and layer.recurrent:
            recurrence = Recurrence(states, config.state_offset(number), cache.attended, places)
            delta, states = recurrent_mixer(config, ops, w, number, h, recurrence, inputs.step)
            x, h = after_mixer(config, ops, w, number, x, delta, following, inputs.step.live)
        else:
            group, angles = config.kv_group(number), inputs.angles(config, layer)
            state: LayerState = (x, h, kv[group], counters[group])
            x, h, array, count = layer_of(
                config, ops, w, number, state, following, angles, cache.groups[group], inputs.rows_of(layer), own
            )
            kv, counters = replaced(kv, group, array), replaced(counters, group, count)
        if (deeper := inputs.part(config, number + 1)) is not None:
            x, h = add_deep_stack(config, ops, tokens, x, h, deeper, following, inputs.step.live)
    return h, kv, x, states


def add_deep_stack(
    config: ModelConfig,
    ops: Ops,
    tokens: jax.Array,
    x: jax.Array,
    h: jax.Array,
    deeper: jax.Array,
    following: NormWeights | None,
    live: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """Add the next part of the embeddings of rows whose token is -1 to the output of a layer: the hidden rows, and
    their norm as an operand. Not a bit of the other rows changes."""
    given = (tokens < 0)[:, None]
    x = jnp.where(given, x + deeper, x)
    _, normed = ops.norm(x, None, None, following, config.rms_eps, live=live)
    return x, jnp.where(given, normed, h)


def layer_of(
    config: ModelConfig,
    ops: Ops,
    w: Parameters,
    number: int,
    state: LayerState,
    following: NormWeights | None,
    angles: RopeAngles | None,
    cache: KvLayout,
    step: StepRows,
    own: jax.Array | None = None,
) -> LayerState:
    """Compute a layer, by one kernel if there is one. `own` are the embeddings of layers (`per_layer_inputs`)."""
    fused = None
    layer, shape = config.plan[number], config.kv_shape(number)
    other = config.mlp_bias or config.parallel or config.attention_gate or config.sinks or layer.experts
    other = other or config.value_norm or config.layer_scalars
    plain = layer.mlp and not other and layer.kv_source is None and shape.key_width == shape.value_width
    if plain and config.gated and not isinstance(following, LayerNormWeights):
        dense = dense_weights(config, w, number, following)
        fused = ops.fused_layer(state, dense, angles, cache, number, config, step)
    return fused or unfused_layer(config, ops, w, number, state, following, angles, cache, step, own)


def dense_weights(config: ModelConfig, w: Parameters, number: int, following: jax.Array | None) -> DenseWeights:
    """Return the weights of a layer without experts; `following` is the norm of what comes after it."""
    name = f"{number}."
    return DenseWeights(
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


def norm_weights(config: ModelConfig, ops: Ops, w: Parameters, name: str) -> NormWeights | None:
    """Return the weights of a norm of hidden rows, such as `3.norm_mlp`; None where the model has none."""
    if not config.norm_weights:
        return _unweighted(config, ops, name)
    weight: jax.Array | None = w.get(name)
    if weight is None or config.norm_kind == "rms":
        return weight
    return LayerNormWeights(weight, w.get(f"{name}_bias"))


def _unweighted(config: ModelConfig, ops: Ops, name: str) -> NormWeights | None:
    """Return the weights of a norm that has none: ones, and zeros where rows are padded."""
    norms = {"norm_attention": config.norms.before_attention, "norm_mlp": config.norms.before_mlp}
    if norms.get(name.rpartition(".")[2], config.names.norm) is None:
        return None
    ones = np.arange(config.hidden_size) < ops.values(config.hidden_size)
    return LayerNormWeights(jnp.asarray(ones.astype(np.float32)), None)


def head_norms(config: ModelConfig, w: Parameters, name: str) -> tuple[jax.Array, jax.Array] | None:
    """Return the norms of the heads of queries and keys of the layer `name`; of a layer without keys, that of queries
    twice."""
    if config.head_norm is None:
        return None
    return w[name + "q_norm"], w.get(name + "k_norm", w[name + "q_norm"])


def queries_and_cache(
    config: ModelConfig,
    ops: Ops,
    w: Parameters,
    number: int,
    h: jax.Array,
    kv: jax.Array,
    angles: RopeAngles | None,
    cache: KvLayout,
    step: StepRows,
) -> tuple[jax.Array, jax.Array]:
    """Return the queries of normed rows, an operand, and the cache with their keys and values in a layer."""
    qkv, _ = projected(config, ops, w, number, h, step.live)
    return ops.rope_and_cache(qkv, angles, head_norms(config, w, f"{number}."), kv, cache, number, config, step)


def latent_projected(
    config: ModelConfig,
    ops: Ops,
    w: Parameters,
    number: int,
    kind: LatentAttention,
    h: jax.Array,
    live: jax.Array | None,
) -> jax.Array:
    """Return the queries, keys and values of latent attention, see `Ops.latent_rows`."""
    name, heads = f"{number}.", config.heads
    width = (kind.query_rank or heads * kind.query) + kind.rank + kind.rotated
    queries = rows = ops.linear(h, w[name + "latent_in"], width, None, live)
    if kind.query_rank is not None:
        low = ops.first_columns(rows, kind.query_rank, w[name + "latent_query_norm"], kind.eps, live)
        queries = ops.linear(low, w[name + "latent_queries"], heads * kind.query, None, live)
    passed = ops.first_columns(queries, heads * kind.passed, None, kind.eps, live)
    multiplied = ops.head_linear(passed, w[name + "latent_keys"], heads, live, operand=False)
    return ops.latent_rows(queries, rows, multiplied, w[name + "latent_norm"], config, live)


def projected(
    config: ModelConfig, ops: Ops, w: Parameters, number: int, h: jax.Array, live: jax.Array | None
) -> tuple[jax.Array, jax.Array | None]:
    """Return the queries, keys and values of normed rows, float32 [rows, lanes of all heads], or the queries alone if
    the layer has no keys and values of its own, and the gate of attention's output, float32 [rows, lanes of all
    queries], if the model has one."""
    if config.latent is not None:
        return latent_projected(config, ops, w, number, config.latent, h, live), None
    shape, layer = config.kv_shape(number), config.plan[number]
    name, queries = f"{number}.", config.heads * shape.key_width
    width = queries * (1 + config.attention_gate)
    if layer.kv_source is None:
        width += shape.heads * (shape.key_width + (0 if layer.keys_as_values else shape.value_width))
    qkv = ops.linear(h, w[name + "qkv"], width, w.get(name + "qkv_bias"), live)
    if config.qkv_clip is not None:
        qkv = jnp.clip(qkv, np.float32(-config.qkv_clip), np.float32(config.qkv_clip))
    if layer.keys_as_values:
        qkv = jnp.concatenate([qkv, qkv[:, queries:]], axis=1)
    if not config.attention_gate:
        return qkv, None
    both = qkv[:, : 2 * queries].reshape(-1, config.heads, 2, shape.key_width)
    query, gate = (both[:, :, part].reshape(-1, queries) for part in range(2))
    return jnp.concatenate([query, qkv[:, 2 * queries :]], axis=1), gate


def unfused_layer(
    config: ModelConfig,
    ops: Ops,
    w: Parameters,
    number: int,
    state: LayerState,
    following: NormWeights | None,
    angles: RopeAngles | None,
    cache: KvLayout,
    step: StepRows,
    own: jax.Array | None = None,
) -> LayerState:
    """Compute a layer, one operation after the other."""
    x, h, kv, counters = state
    name, live = f"{number}.", step.live
    qkv, gate = projected(config, ops, w, number, h, live)
    q, kv = ops.rope_and_cache(qkv, angles, head_norms(config, w, name), kv, cache, number, config, step)
    mixed = ops.attend(q, kv, cache, number, config, step, w.get(name + "sinks"))
    if gate is not None:
        mixed = ops.output_gate(mixed, gate, live)
    if config.latent is not None:
        mixed = ops.head_linear(mixed, w[name + "latent_values"], config.heads, live, operand=True)
    delta = ops.linear(mixed, w[name + "o"], config.hidden_size, w.get(name + "o_bias"), live)
    if config.parallel:
        return *parallel_mlp(config, ops, w, number, x, h, delta, following, live), kv, counters
    return *after_mixer(config, ops, w, number, x, delta, following, live, own), kv, counters


def recurrent_mixer(
    config: ModelConfig, ops: Ops, w: Parameters, number: int, h: jax.Array, recurrence: Recurrence, step: StepRows
) -> tuple[jax.Array, jax.Array]:
    """Return what a layer with a recurrent state adds to normed rows, float32 [rows, hidden], and the states."""
    if config.plan[number].kind == "mamba2":
        return mamba_mixer(config, ops, w, number, h, recurrence, step)
    name, live, sizes = f"{number}.", step.live, config.delta
    if config.plan[number].kind == "convolution" or sizes is None:
        inputs = ops.linear(h, w[name + "conv_in"], 3 * config.hidden_size, None, live)
        mixed, states = ops.convolution(inputs, Taps(w[name + "conv_taps"]), recurrence, step, gated=True)
        return ops.linear(mixed, w[name + "conv_out"], config.hidden_size, None, live), states
    inputs = ops.linear(h, w[name + "delta_in"], sizes.channels + sizes.values, None, live)
    gates = ops.linear(h, w[name + "delta_gates"], 2 * sizes.value_heads, None, live)
    x, states = ops.convolution(inputs, Taps(w[name + "delta_taps"]), recurrence, step, gated=False)
    constants = (w[name + "delta_decay"], w[name + "delta_bias"])
    read, states = ops.gated_delta(x, gates, constants, sizes, replace(recurrence, states=states), step)
    mixed = ops.gated_norm(read, inputs, w[name + "delta_norm"], sizes, config.rms_eps, live)
    return ops.linear(mixed, w[name + "delta_out"], config.hidden_size, None, live), states


def mamba_mixer(
    config: ModelConfig, ops: Ops, w: Parameters, number: int, h: jax.Array, recurrence: Recurrence, step: StepRows
) -> tuple[jax.Array, jax.Array]:
    """Return what a Mamba-2 layer adds to normed rows, float32 [rows, hidden], and the states."""
    name, live, sizes = f"{number}.mamba_", step.live, config.mamba
    assert sizes is not None  # a layer is a state space model only where the model has them
    inputs = ops.linear(h, w[name + "in"], sizes.projected, None, live)
    filter = Taps(w[name + "taps"], w.get(name + "conv_bias"), first=sizes.inner)
    x, states = ops.convolution(inputs, filter, recurrence, step, gated=False)
    heads = MambaWeights(w[name + "decay"], w[name + "step_bias"], w[name + "skip"])
    read, states = ops.selective_state(x, inputs, heads, sizes, replace(recurrence, states=states), step)
    mixed = ops.group_norm(read, w[name + "norm"], sizes.groups, config.rms_eps, live)
    return ops.linear(mixed, w[name + "out"], config.hidden_size, None, live), states


def parallel_mlp(
    config: ModelConfig,
    ops: Ops,
    w: Parameters,
    number: int,
    x: jax.Array,
    h: jax.Array,
    delta: jax.Array,
    following: NormWeights | None,
    live: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """Compute the MLP of the rows that the layer's mixer has read, and add both: the hidden rows, and their norm as an
    operand."""
    name, eps = f"{number}.", config.rms_eps
    before_mlp = norm_weights(config, ops, w, name + "norm_mlp")
    if before_mlp is not None:
        _, h = ops.norm(x, None, None, before_mlp, eps, live=live)
    delta = delta + mlp(config, ops, w, name, config.plan[number], h, live)
    return ops.norm(x, delta, None, following, eps, config.residual_multiplier, live)


def after_mixer(
    config: ModelConfig,
    ops: Ops,
    w: Parameters,
    number: int,
    x: jax.Array,
    delta: jax.Array,
    following: NormWeights | None,
    live: jax.Array | None,
    own: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Add what a layer's mixer gives and compute the layer's MLP, if it has one: the hidden rows, and their norm as an
    operand."""
    if not config.plan[number].mlp:
        return add(config, ops, x, delta, following, live)
    name, eps, multiplier = f"{number}.", config.rms_eps, config.residual_multiplier
    before_mlp = norm_weights(config, ops, w, name + "norm_mlp")
    x, h = ops.norm(x, delta, w.get(name + "norm_attention_out"), before_mlp, eps, multiplier, live)
    delta = mlp(config, ops, w, name, config.plan[number], h, live)
    if config.experts_beside_mlp:
        delta = add_experts(config, ops, w, name, x, delta, live)
    if config.layer_scalars or own is not None:
        return end_of_layer(config, ops, w, number, x, delta, following, live, own)
    return ops.norm(x, delta, w.get(name + "norm_mlp_out"), following, eps, multiplier, live)


def add(
    config: ModelConfig,
    ops: Ops,
    x: jax.Array,
    delta: jax.Array,
    following: NormWeights | None,
    live: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """Add what the only part of a layer gives: the hidden rows, and their norm as an operand."""
    return ops.norm(x, delta, None, following, config.rms_eps, config.residual_multiplier, live)


def embed(config: ModelConfig, ops: Ops, w: Parameters, inputs: StepInputs) -> jax.Array:
    """Return the embeddings of the step's tokens, float32 [rows, hidden]."""
    tokens = inputs.tokens.reshape(-1)
    if inputs.embeddings is None:
        x = ops.embedding(w["embedding"], tokens)
    else:
        x = ops.embedding(w["embedding"], jnp.maximum(tokens, 0))
        x = jnp.where((tokens < 0)[:, None], inputs.part(config, 0), x)
    return x if config.embedding_scale == 1 else x * embedding_scale(config, ops.dtype)


def embedding_scale(config: ModelConfig, dtype: str) -> np.float32:
    """Return the factor of the embeddings of a model of this type."""
    kind = jnp.dtype(dtype) if config.rounds_embedding_scale else np.float32
    return np.float32(np.asarray(config.embedding_scale, kind))


def mlp(
    config: ModelConfig, ops: Ops, w: Parameters, name: str, layer: LayerConfig, h: jax.Array, live: jax.Array | None
) -> jax.Array:
    """Return what the MLP adds to an operand's rows: float32 [rows, hidden]."""
    if layer.experts and not config.experts_beside_mlp:
        return mixture(config, ops, w, name, h, live)
    down, up_name = w[name + "down"], name + ("gate_up" if config.gated else "up")
    if config.gated and not config.mlp_bias:
        ffn = layer.ffn_multiple * config.ffn
        return ops.mlp(h, w[up_name], down, config.hidden_size, ffn, config.activation, live)
    width = 2 * config.ffn if config.gated else config.ffn
    up = ops.linear(h, w[up_name], width, w.get(up_name + "_bias"), live)
    activated = ops.activate(up, config.activation, gated=config.gated, live=live)
    return ops.linear(activated, down, config.hidden_size, w.get(name + "down_bias"), live)


def head(config: ModelConfig, ops: Ops, w: Parameters, hidden: jax.Array, live: jax.Array | None = None) -> jax.Array:
    """Return the logits of normed hidden rows, an operand, or of the live ones (see `StepRows`): float32
    [rows, vocab]."""
    # A quantized tied head is stored once.
    matrix = w.get("head", w["embedding"])
    logits, cap = ops.linear(hidden, matrix, config.vocab_size, w.get("head_bias"), live), config.logit_cap
    if config.logits_scaling != 1:
        logits = logits / np.float32(config.logits_scaling)
    return logits if cap is None else jnp.tanh(logits / np.float32(cap)) * np.float32(cap)
