"""The Llama family's decoder as one JAX function over rows of a shared cache.

One step computes `tokens` rows of each of `batch` slots: tokens = 1 is a decode step, batch = 1 is a
chunk of a prompt. The keys and values of the rows are written before they are attended to, so that a row's result
depends on what is in its slot up to that row and on nothing else: not on the other rows of the step, nor on whether
the rows before came in the same step.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from workers.architectures.families import BEFORE
from workers.architectures.tensors import tensors
from workers.checkpoint import CheckpointError, ModelConfig
from workers.iree.ops import Angles, Cache, Ops, Place, Shape

Parameters = dict[str, Any]
"""By name: an array, or for `Ops.linear` alone a `quantized.Packed`."""


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


@dataclass(frozen=True, slots=True)
class Inputs:
    """What one step is about: `tokens` rows of each of `batch` slots."""

    tokens: jax.Array
    """int32 [batch, tokens]."""
    cos: jax.Array
    sin: jax.Array
    """float32 [batch, tokens, head_dim / 2]: the rows' RoPE angles."""
    place: Place


def forward(
    config: ModelConfig, ops: Ops, cache: Cache, w: Parameters, inputs: Inputs, kv: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """All layers: the normed hidden rows, an operand of batch * tokens rows, and the cache with the new rows."""
    half = config.head_dim // 2
    angles = Angles(inputs.cos.reshape(-1, half), inputs.sin.reshape(-1, half))
    heads = config.heads + 2 * config.kv_heads
    x, delta = w["embedding"][inputs.tokens.reshape(-1)].astype(jnp.float32), None
    for layer in range(config.layers):
        name = f"{layer}."
        x, h = ops.norm(x, delta, w[name + "norm_attention"], config.rms_eps)
        qkv = ops.linear(h, w[name + "qkv"], heads * config.head_dim, w.get(name + "qkv_bias"))
        norms = (w[name + "q_norm"], w[name + "k_norm"]) if config.head_norm is not None else None
        q, kv = ops.place(qkv, angles, norms, kv, cache, layer, config, inputs.place)
        mixed = ops.attend(q, kv, cache, layer, config, inputs.place)
        delta = ops.linear(mixed, w[name + "o"], config.hidden_size, w.get(name + "o_bias"))
        x, h = ops.norm(x, delta, w[name + "norm_mlp"], config.rms_eps)
        h = ops.gated(h, w[name + "gate_up"], config.hidden_size, config.ffn)
        delta = ops.linear(h, w[name + "down"], config.hidden_size)
    _, h = ops.norm(x, delta, w["norm"], config.rms_eps)
    return h, kv
