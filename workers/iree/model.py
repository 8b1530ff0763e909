"""The Llama family's decoder as one JAX function over rows of a shared cache.

One step computes `tokens` rows of each of `batch` neighbouring slots: tokens = 1 is a decode step, batch = 1 is a
chunk of a prompt. The keys and values of the rows are written before they are attended to, so that a row's result
depends on what is in its slot up to that row and on nothing else: not on the other rows of the step, nor on whether
the rows before came in the same step.
"""

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from workers.architectures.families import BEFORE
from workers.architectures.tensors import tensors
from workers.checkpoint import CheckpointError, ModelConfig
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
    offset: float = 0.0
    """Added to every value."""

    @property
    def rows(self) -> int:
        return sum(shape[0] for _, shape in self.sources)


def refuse_unsupported(path: Path, config: ModelConfig, context: int) -> None:
    """Raises `CheckpointError` for what the graphs would not compute as config.json says."""
    windows = [layer.window for layer in config.plan if layer.window is not None]
    if windows and context > min(windows):
        problem = f"the IREE backend has no attention windows: the context can be {min(windows)} at most, not {context}"
        raise CheckpointError(path / "config.json", "sliding_window", problem)
    unlike_llama = (
        config.norms != BEFORE
        or config.head_norm == "all"
        or config.activation != "silu"
        or config.embedding_scale != 1
        or config.attention_cap is not None
        or config.logit_cap is not None
        or config.experts is not None
        or any(layer.rope != 0 for layer in config.plan)
        or config.ropes[0].dims != config.head_dim
    )
    if unlike_llama:
        raise CheckpointError(
            path / "config.json", "architectures", f"{config.family} is not supported by the IREE backend"
        )


def parameters(config: ModelConfig, dtype: str) -> list[Parameter]:
    """Every parameter of the model: matrices in `dtype`, norms and biases in float32."""
    out = []
    for tensor in tensors(config):
        matrix = tensor.matrix and tensor.name != "embedding"
        kind = dtype if tensor.matrix else "float32"
        out.append(Parameter(tensor.name, tensor.sources, matrix, kind, tensor.offset))
    return out


def rope_frequencies(config: ModelConfig, context: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Radians per position of each pair of lanes and the factor of its cos and sin, for slots of `context` rows.

    float32 [angles] each, where angles = rotations * rotated lanes / 2, one rotation after the other.
    """
    each = [rope.frequencies(context) for rope in config.ropes]
    factors = [np.full(len(frequencies), factor, np.float32) for frequencies, factor in each]
    return np.concatenate([frequencies for frequencies, _ in each]), np.concatenate(factors)


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
        if config.head_norm is not None:
            qkv = _norm_heads(config, ops, qkv, w[name + "q_norm"], w[name + "k_norm"])
        q = ops.rotate(qkv, cos, sin, 0, config.heads) * np.float32(config.attention_scale)
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
