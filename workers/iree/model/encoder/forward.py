"""An encoder as one JAX function over the rows of a call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from workers.checkpoints.architectures.tensors import Tensor
from workers.checkpoints.encoders.config import EncoderConfig
from workers.checkpoints.encoders.tensors import TABLES
from workers.iree.lazy_jax import jax, jnp
from workers.iree.model.decoder import Parameter
from workers.iree.model.encoder.operations import EncoderOps, EncoderRows
from workers.iree.model.ops import LayerNormWeights, NormWeights, RopeAngles

Weights = dict[str, Any]
"""The parameters by name: an array, or a `PackedMatrix` where the parameter is quantized."""


@dataclass(frozen=True, slots=True)
class EncoderInputs:
    """The inputs of a call."""

    tokens: jax.Array
    types: jax.Array
    """int32 [blocks, tokens] each."""
    cos: jax.Array
    sin: jax.Array
    """float32 [blocks, tokens, angles]: those of all rotary embeddings, one after the other."""
    rows: EncoderRows

    def angles(self, config: EncoderConfig, number: int) -> RopeAngles | None:
        """Return the angles of a layer's rotation."""
        rope = config.plan[number].rope
        if rope is None:
            return None
        first = sum(each.dims for each in config.ropes[:rope]) // 2
        mine = slice(first, first + config.ropes[rope].dims // 2)
        return RopeAngles(*(both.reshape(-1, both.shape[-1])[:, mine] for both in (self.cos, self.sin)))


def encoder_parameters(tensors: Iterable[Tensor], dtype: str) -> list[Parameter]:
    """Return every parameter: matrices and tables in `dtype`, norms and biases in float32."""
    out = []
    for tensor in tensors:
        matrix = tensor.matrix and tensor.name not in TABLES
        kind = dtype if tensor.matrix else "float32"
        out.append(Parameter(tensor.name, tensor.sources, matrix, kind, matrix, tensor.offset, tensor.orders))
    return out


def encode(
    config: EncoderConfig, ops: EncoderOps, w: Weights, inputs: EncoderInputs, scratch: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Compute all layers: the hidden states behind the last norm, float32 [rows, hidden], and the scratch cache."""
    live, layers = inputs.rows.live, len(config.plan)
    x, h = _first(config, ops, w, inputs)
    for number, layer in enumerate(config.plan):
        place = f"{number}."
        qkv = ops.linear(h, w[f"{place}qkv"], config.qkv_width, w.get(f"{place}qkv_bias"), live)
        angles = inputs.angles(config, number)
        heads = (w[f"{place}norm_queries"], w[f"{place}norm_keys"]) if config.head_norms else None
        mixed, scratch = ops.attend_both_ways(qkv, angles, heads, scratch, layer, config, inputs.rows)
        out, bias = w[f"{place}attention_out"], w.get(f"{place}attention_out_bias")
        delta = ops.linear(mixed, out, config.hidden_size, bias, live)
        if not config.pre_norm:
            x, h = ops.normed(x, delta, _norm(config, w, f"{place}norm_attention"), config.eps, live)
            x, h = ops.normed(
                x, _mlp(config, ops, w, place, h, live), _norm(config, w, f"{place}norm_mlp"), config.eps, live
            )
            continue
        after = (w.get(f"{place}norm_mixed"), w.get(f"{place}norm_up"))
        x, h = ops.norm(x, delta, after[0], _norm(config, w, f"{place}norm_mlp"), config.eps, live=live)
        delta = _mlp(config, ops, w, place, h, live)
        if number + 1 < layers:
            before = _norm(config, w, f"{number + 1}.norm_attention")
            x, h = ops.norm(x, delta, after[1], before, config.eps, live=live)
        else:
            x, h = ops.normed(x, delta, _norm(config, w, "norm"), config.eps, live, after[1])
    return x, scratch


def _first(config: EncoderConfig, ops: EncoderOps, w: Weights, inputs: EncoderInputs) -> tuple[jax.Array, jax.Array]:
    """Return the residual stream before the first layer, and what its attention reads."""
    word, other = _embeddings(config, ops, w, inputs)
    live = inputs.rows.live
    if config.embedding_norm:
        return ops.normed(word, other, _norm(config, w, "norm_embedding"), config.eps, live)
    if config.embedding_scale != 1:
        word = word * np.float32(np.asarray(config.embedding_scale, jnp.dtype(ops.dtype)))
    return ops.norm(word, None, None, _norm(config, w, "0.norm_attention"), config.eps, live=live)


def _embeddings(
    config: EncoderConfig, ops: EncoderOps, w: Weights, inputs: EncoderInputs
) -> tuple[jax.Array, jax.Array | None]:
    """Return the embeddings of the tokens, and what is added to them."""
    added = None
    if config.table_positions:
        at = jnp.minimum(inputs.rows.own.reshape(-1) + config.position_offset, config.table_positions - 1)
        added = w["positions"][at].astype(jnp.float32)
    if config.token_types:
        types = w["token_types"][inputs.types.reshape(-1)].astype(jnp.float32)
        added = types if added is None else added + types
    return ops.embedding(w["embedding"], inputs.tokens.reshape(-1)), added


def _mlp(
    config: EncoderConfig, ops: EncoderOps, w: Weights, place: str, h: jax.Array, live: jax.Array | None
) -> jax.Array:
    up, down, hidden, ffn = w[f"{place}up"], w[f"{place}down"], config.hidden_size, config.ffn
    if config.gated and not (config.up_bias or config.down_bias):
        return ops.mlp(h, up, down, hidden, ffn, config.activation, live)
    both = ops.linear(h, up, 2 * ffn if config.gated else ffn, w.get(f"{place}up_bias"), live)
    activated = ops.activate(both, config.activation, gated=config.gated, live=live)
    return ops.linear(activated, down, hidden, w.get(f"{place}down_bias"), live)


def _norm(config: EncoderConfig, w: Weights, name: str) -> NormWeights:
    if config.rms:
        weight: jax.Array = w[name]
        return weight
    return LayerNormWeights(w[name], w.get(f"{name}_bias"))
