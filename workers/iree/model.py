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


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, in float32 (https://arxiv.org/abs/1910.07467)."""
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + np.float32(eps)) * weight


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """RoPE on x [..., heads, head_dim] with cos and sin [..., 1, head_dim / 2]; halves, not neighbours, are pairs."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


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
    cos, sin = inputs.cos[:, :, None, :], inputs.sin[:, :, None, :]
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    scale = np.float32(config.head_dim**-0.5)
    x = w["embedding"][inputs.tokens.reshape(-1)].astype(jnp.float32)
    for layer in range(config.layers):
        name = f"{layer}."
        h = rms_norm(x, w[name + "norm_attention"], config.rms_eps)
        qkv = ops.linear(h, w[name + "qkv"], queries + 2 * keys)
        if config.qkv_bias:
            qkv = qkv + w[name + "qkv_bias"]
        q = qkv[:, :queries].reshape(batch, tokens, config.heads, config.head_dim)
        k = qkv[:, queries : queries + keys].reshape(batch, tokens, config.kv_heads, config.head_dim)
        v = qkv[:, queries + keys :].reshape(batch, tokens, config.kv_heads, config.head_dim)
        if config.qk_norm:
            q = rms_norm(q, w[name + "q_norm"], config.rms_eps)
            k = rms_norm(k, w[name + "k_norm"], config.rms_eps)
        kv = ops.write(kv, cache, layer, rotate(k, cos, sin), v, inputs.place)
        mixed = ops.attend(rotate(q, cos, sin) * scale, kv, cache, layer, inputs.place)
        attended = ops.linear(mixed.reshape(batch * tokens, queries), w[name + "o"], config.hidden_size)
        if config.o_bias:
            attended = attended + w[name + "o_bias"]
        x = x + attended
        h = rms_norm(x, w[name + "norm_mlp"], config.rms_eps)
        both = ops.linear(h, w[name + "gate_up"], 2 * config.ffn)
        gate, up = both[:, : config.ffn], both[:, config.ffn :]
        x = x + ops.linear(gate * jax.nn.sigmoid(gate) * up, w[name + "down"], config.hidden_size)
    return rms_norm(x, w["norm"], config.rms_eps), kv
