"""The Llama family's decoder as one JAX function over rows of a shared cache.

One step computes `tokens` rows of each of `batch` neighbouring slots: tokens = 1 is a decode step, batch = 1 is a
chunk of a prompt. The keys and values of the rows are written before they are attended to, so that a row's result
depends on what is in its slot up to that row and on nothing else: not on the other rows of the step, nor on whether
the rows before came in the same step.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from workers.checkpoint import ModelConfig
from workers.iree.ops import Cache, Ops, Place, Shape

Parameters = dict[str, jax.Array]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One stored tensor of the archive and the checkpoint's tensors that it is made of, stacked along the outputs."""

    name: str
    sources: tuple[tuple[str, Shape], ...]
    matrix: bool
    """Stored as `Ops.store` does; everything else is kept as it is."""
    dtype: str

    @property
    def rows(self) -> int:
        return sum(shape[0] for _, shape in self.sources)


def parameters(config: ModelConfig, dtype: str) -> list[Parameter]:
    """Every parameter of the model: matrices in `dtype`, norms and biases in float32."""
    hidden, ffn, vocab = config.hidden_size, config.ffn, config.vocab_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    out: list[Parameter] = []

    def add(name: str, *sources: tuple[str, Shape], matrix: bool = True) -> None:
        out.append(Parameter(name, sources, matrix, dtype if matrix else "float32"))

    embedding = "model.embed_tokens.weight"
    out.append(Parameter("embedding", ((embedding, (vocab, hidden)),), matrix=False, dtype=dtype))
    for layer in range(config.layers):
        name, source = f"{layer}.", f"model.layers.{layer}."
        attention = source + "self_attn."
        projections = (("q", queries), ("k", keys), ("v", keys))
        add(name + "norm_attention", (source + "input_layernorm.weight", (hidden,)), matrix=False)
        add(name + "qkv", *((f"{attention}{x}_proj.weight", (size, hidden)) for x, size in projections))
        if config.qkv_bias:
            biases = ((f"{attention}{x}_proj.bias", (size,)) for x, size in projections)
            add(name + "qkv_bias", *biases, matrix=False)
        if config.qk_norm:
            for x in ("q", "k"):
                add(f"{name}{x}_norm", (f"{attention}{x}_norm.weight", (config.head_dim,)), matrix=False)
        add(name + "o", (attention + "o_proj.weight", (hidden, queries)))
        if config.o_bias:
            add(name + "o_bias", (attention + "o_proj.bias", (hidden,)), matrix=False)
        add(name + "norm_mlp", (source + "post_attention_layernorm.weight", (hidden,)), matrix=False)
        add(name + "gate_up", *((f"{source}mlp.{x}_proj.weight", (ffn, hidden)) for x in ("gate", "up")))
        add(name + "down", (source + "mlp.down_proj.weight", (hidden, ffn)))
    add("norm", ("model.norm.weight", (hidden,)), matrix=False)
    add("head", (embedding if config.tie_embeddings else "lm_head.weight", (vocab, hidden)))
    return out


def rope_frequencies(config: ModelConfig) -> NDArray[np.float32]:
    """Radians per position of each pair of lanes: float32 [head_dim / 2].

    RoPE: https://arxiv.org/abs/2104.09864; llama3's scaling as in transformers' modeling_rope_utils.
    """
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies.astype(np.float32)
    slow = frequencies / scaling.factor
    if scaling.kind == "linear":
        return slow.astype(np.float32)
    wavelength = 2 * np.pi / frequencies
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    blend = np.clip((scaling.original_max_positions / wavelength - low) / (high - low), 0.0, 1.0)
    return ((1 - blend) * slow + blend * frequencies).astype(np.float32)


def rms_norm(ops: Ops, x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """x / sqrt(mean(x^2) + eps) * weight: float32 [rows, width] (https://arxiv.org/abs/1910.07467)."""
    return x * lax.rsqrt(ops.mean_square(x) + np.float32(eps)) * weight


@dataclass(frozen=True, slots=True)
class Inputs:
    """What one step is about: `batch` slots from `place.first` with `tokens` rows each."""

    tokens: jax.Array
    """int32 [batch, tokens]."""
    cos: jax.Array
    sin: jax.Array
    """float32 [batch, tokens, head_dim / 2]: the rows' RoPE angles."""
    place: Place


def forward(
    config: ModelConfig, ops: Ops, cache: Cache, w: Parameters, inputs: Inputs, kv: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """All layers: returns the normed hidden rows, float32 [batch * tokens, hidden], and the cache with the new rows."""
    batch, tokens = inputs.tokens.shape
    rows, depth = batch * tokens, config.head_dim
    cos, sin = inputs.cos.reshape(rows, depth // 2), inputs.sin.reshape(rows, depth // 2)
    heads = config.heads + 2 * config.kv_heads
    x = w["embedding"][inputs.tokens.reshape(-1)].astype(jnp.float32)
    for layer in range(config.layers):
        name = f"{layer}."
        h = rms_norm(ops, x, w[name + "norm_attention"], config.rms_eps)
        qkv = ops.linear(h, w[name + "qkv"], heads * depth)
        if config.qkv_bias:
            qkv = qkv + w[name + "qkv_bias"]
        qkv = qkv.reshape(rows, heads, depth)
        v = qkv[:, config.heads + config.kv_heads :]
        if config.qk_norm:
            qkv = _norm_heads(config, ops, qkv, w[name + "q_norm"], w[name + "k_norm"])
        q = ops.rotate(qkv, cos, sin, 0, config.heads) * np.float32(depth**-0.5)
        k = ops.rotate(qkv, cos, sin, config.heads, config.kv_heads)
        lead = (batch, tokens)
        kv = ops.write(kv, cache, layer, k.reshape(*lead, *k.shape[1:]), v.reshape(*lead, *v.shape[1:]), inputs.place)
        mixed = ops.attend(q.reshape(*lead, *q.shape[1:]), kv, cache, layer, inputs.place)
        attended = ops.linear(mixed.reshape(rows, config.heads * depth), w[name + "o"], config.hidden_size)
        if config.o_bias:
            attended = attended + w[name + "o_bias"]
        x = x + attended
        h = rms_norm(ops, x, w[name + "norm_mlp"], config.rms_eps)
        both = ops.linear(h, w[name + "gate_up"], 2 * config.ffn)
        gate, up = both[:, : config.ffn], both[:, config.ffn :]
        x = x + ops.linear(gate * jax.nn.sigmoid(gate) * up, w[name + "down"], config.hidden_size)
    return rms_norm(ops, x, w["norm"], config.rms_eps), kv


def _norm_heads(config: ModelConfig, ops: Ops, qkv: jax.Array, q_norm: jax.Array, k_norm: jax.Array) -> jax.Array:
    """Qwen3: norm each query and key head of [rows, heads, head_dim] by itself; the values are dropped."""
    rows, count, depth = qkv.shape[0], config.heads + config.kv_heads, config.head_dim
    weight = jnp.concatenate(
        [jnp.broadcast_to(q_norm, (config.heads, depth)), jnp.broadcast_to(k_norm, (config.kv_heads, depth))]
    )
    flat = qkv[:, :count].reshape(rows * count, depth)
    normed = flat * lax.rsqrt(ops.mean_square(flat) + np.float32(config.rms_eps))
    return normed.reshape(rows, count, depth) * weight
