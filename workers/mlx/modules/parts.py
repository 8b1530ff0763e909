"""Replacements for parts of mlx-lm's models: attention over slots, no `mx.compile` on a CPU, less rounding."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map_with_path, tree_unflatten
from mlx_lm.models import base, gemma2, switch_layers

from workers.checkpoints.checkpoint import ModelConfig
from workers.mlx.attention import FreshRows

SWIGLU_LIMIT, SWIGLU_ALPHA = 7.0, 1.702
"""Constants of the activation of gpt-oss' experts."""


def ragged_attention(
    queries: mx.array,
    keys: Any,
    values: Any,
    cache: Any,
    scale: float,
    mask: Any,
    sinks: mx.array | None = None,
) -> mx.array:
    """mlx-lm's `scaled_dot_product_attention`, extended to rows of several slots."""
    if isinstance(keys, FreshRows):
        return keys.cache.attend(queries, keys.rows, values.rows, scale, sinks=sinks)
    output: mx.array = base.scaled_dot_product_attention(queries, keys, values, cache, scale, mask, sinks)
    return output


class CappedAttention(gemma2.Attention):  # type: ignore[misc]
    """Gemma 2's attention over slots. mlx-lm writes it out, with capped scores, instead of calling a function."""

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        rows, tokens, _ = x.shape

        def heads(part: mx.array, count: int) -> mx.array:
            return part.reshape(rows, tokens, count, -1).transpose(0, 2, 1, 3)

        queries = self.rope(heads(self.q_proj(x), self.n_heads), offset=cache.offset)
        keys = self.rope(heads(self.k_proj(x), self.n_kv_heads), offset=cache.offset)
        values = heads(self.v_proj(x), self.n_kv_heads)
        output = cache.attend(queries, keys, values, self.scale, self.attn_logit_softcapping)
        projected: mx.array = self.o_proj(output.transpose(0, 2, 1, 3).reshape(rows, tokens, -1))
        return projected


def plain_swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """mlx-lm's `swiglu` without `mx.compile`."""
    return gate * mx.sigmoid(gate) * up


def plain_precise_swiglu(hidden: mx.array, gate: mx.array, x: mx.array) -> mx.array:
    """mlx-lm's `precise_swiglu` without `mx.compile`."""
    wide = gate.astype(mx.float32)
    return (wide * mx.sigmoid(wide) * x.astype(mx.float32)).astype(hidden.dtype)


def plain_clamped_swiglu() -> Callable[[mx.array, mx.array], mx.array]:
    """Return the activation of gpt-oss' experts, mlx-lm's `SwigluOAI` without `mx.compile`."""

    def activate(up: mx.array, gate: mx.array) -> mx.array:
        gate, up = mx.minimum(gate, SWIGLU_LIMIT), mx.clip(up, -SWIGLU_LIMIT, SWIGLU_LIMIT)
        return (up + 1.0) * (gate * mx.sigmoid(SWIGLU_ALPHA * gate))

    return activate


class WidenedExperts(switch_layers.SwitchLinear):  # type: ignore[misc]
    """mlx-lm's `SwitchLinear` on a CPU, where MLX multiplies in float32 only: chosen experts of 16 bits are widened."""

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        weight: mx.array = self.weight
        if weight.dtype != mx.float32:
            chosen, places = np.unique(np.array(indices), return_inverse=True)
            weight = weight[mx.array(chosen)].astype(mx.float32)
            rows = mx.array(places.reshape(indices.shape).astype(np.uint32))
        else:
            rows = indices
        out = mx.gather_mm(
            x.astype(mx.float32), weight.swapaxes(-1, -2), rhs_indices=rows, sorted_indices=sorted_indices
        )
        if "bias" in self:
            out = out + mx.expand_dims(self.bias[indices], -2)
        return out.astype(x.dtype)


class PlainExperts(switch_layers.SwitchGLU):  # type: ignore[misc]
    """mlx-lm's `SwitchGLU` without `mx.compile`, for a CPU."""

    def __init__(
        self, input_dims: int, hidden_dims: int, num_experts: int, activation: Any = None, bias: bool = False
    ) -> None:
        activation = activation or (lambda up, gate: plain_swiglu(gate, up))
        super().__init__(input_dims, hidden_dims, num_experts, activation=activation, bias=bias)
        self.gate_proj = WidenedExperts(input_dims, hidden_dims, num_experts, bias=bias)
        self.up_proj = WidenedExperts(input_dims, hidden_dims, num_experts, bias=bias)
        self.down_proj = WidenedExperts(hidden_dims, input_dims, num_experts, bias=bias)


class PlainGelu(gemma2.MLP):  # type: ignore[misc]
    """Gemma's MLP without `mx.compile`."""

    def __call__(self, x: mx.array) -> mx.array:
        gate = self.gate_proj(x)
        activated = 0.5 * gate * (1 + mx.tanh((2 / mx.pi) ** 0.5 * (gate + 0.044715 * gate**3)))
        down: mx.array = self.down_proj(activated * self.up_proj(x))
        return down


def plain_clip_residual(x: mx.array, y: mx.array) -> mx.array:
    """mlx-lm's `clip_residual` without `mx.compile`: it clips sums in float16, which may not become infinite."""
    if x.dtype != mx.float16:
        return x + y
    bound = mx.finfo(mx.float16).max
    return mx.clip(x.astype(mx.float32) + y.astype(mx.float32), -bound, bound).astype(mx.float16)


class Multiplied(nn.Module):  # type: ignore[misc]
    """A module whose output is multiplied in float32 and rounded once; mlx-lm would round the multiplier as well."""

    def __init__(self, module: nn.Module, multiplier: float) -> None:
        super().__init__()
        self.module = module
        self._multiplier = multiplier

    def __call__(self, *arguments: Any, **options: Any) -> mx.array:
        out: mx.array = self.module(*arguments, **options)
        return (out.astype(mx.float32) * self._multiplier).astype(out.dtype)

    def as_linear(self, x: mx.array) -> mx.array:
        """Logits of an embedding that is the head as well."""
        logits: mx.array = self.module.as_linear(x)
        return logits


def apply_multipliers(model: Any, config: ModelConfig) -> None:
    """Multiply what a Granite model embeds, and what its layers add to the residual stream."""
    model.model.embed_tokens = Multiplied(model.model.embed_tokens, config.embedding_scale)
    for layer in model.layers:
        for part in ("self_attn", "mamba", "mlp", "block_sparse_moe", "shared_mlp"):
            if part in layer:
                setattr(layer, part, Multiplied(getattr(layer, part), config.residual_multiplier))


class ExactlyScaled(nn.Module):  # type: ignore[misc]
    """An embedding whose scale mlx-lm rounds to bfloat16: with weights of another type, the rounding is undone."""

    def __init__(self, embedding: nn.Module, scale: float) -> None:
        super().__init__()
        self.embedding = embedding
        self._factor = scale / float(np.array(mx.array(scale, mx.bfloat16).astype(mx.float32)))

    @property
    def factor(self) -> float:
        """The factor that undoes the rounding, of embeddings that are not in bfloat16."""
        return self._factor

    def __call__(self, tokens: mx.array) -> mx.array:
        embedded: mx.array = self.embedding(tokens)
        return embedded if embedded.dtype == mx.bfloat16 else embedded * self._factor

    def as_linear(self, x: mx.array) -> mx.array:
        logits: mx.array = self.embedding.as_linear(x)
        return logits


def correct_embedding_scale(model: Any, config: ModelConfig) -> None:
    """Undo the rounding of Gemma 3's embedding scale where the weights are not in bfloat16."""
    model.model.embed_tokens = ExactlyScaled(model.model.embed_tokens, config.embedding_scale)


class Float32Scales(nn.Module):  # type: ignore[misc]
    """A quantized module that computes in float32, with its scales and biases in float32, and rounds its output.

    For scales that the type of the model would round: the error of a scale is that of all weights of its group.
    """

    def __init__(self, module: nn.Module, dtype: mx.Dtype) -> None:
        super().__init__()
        self.module = module
        self._dtype = dtype

    def __call__(self, *arguments: Any, **options: Any) -> mx.array:
        out: mx.array = self.module(*arguments, **options)
        return out.astype(self._dtype)

    def as_linear(self, x: mx.array) -> mx.array:
        """Logits of an embedding that is the head as well."""
        logits: mx.array = self.module.as_linear(x)
        return logits


def cast_parameters(model: nn.Module, dtype: mx.Dtype) -> None:
    """Cast the floating-point parameters of a model, except those that it keeps as they are, and scales that `dtype`
    would round: those become float32."""
    wide = {
        name: (module, module.scales.astype(mx.float32), module.biases.astype(mx.float32))
        for name, module in model.named_modules()
        if "biases" in module and module.scales.dtype != dtype
    }
    casts = getattr(model, "cast_predicate", lambda name: True)

    def cast(name: str, array: mx.array) -> mx.array:
        return array.astype(dtype) if casts(name) and mx.issubdtype(array.dtype, mx.floating) else array

    model.update(tree_map_with_path(cast, model.parameters()))
    if dtype == mx.float32:
        return
    for module, scales, biases in wide.values():
        module.scales, module.biases = scales, biases
    model.update_modules(tree_unflatten([(name, Float32Scales(each[0], dtype)) for name, each in wide.items()]))
