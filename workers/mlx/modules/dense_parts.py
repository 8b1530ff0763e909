"""Parts of mlx-lm's models of dense families that are not like Llama's: Baton's attention, MLPs and norms in them."""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import gpt_neox, phi, stablelm

from workers.checkpoints.checkpoint import ModelConfig
from workers.mlx.modules.ungated import ungated


def _attend(attention: Any, x: mx.array, cache: Any) -> mx.array:
    """Attention over slots up to the output projection, for modules that widen queries or keys to float32 in mlx-lm:
    scores of float16 would be infinite in some models. The KV cache does not take wide keys, so only queries are."""
    rows, tokens, _ = x.shape
    queries = attention.q_proj(x).reshape(rows, tokens, attention.num_heads, -1)
    keys = attention.k_proj(x).reshape(rows, tokens, attention.num_key_value_heads, -1)
    values = attention.v_proj(x).reshape(rows, tokens, attention.num_key_value_heads, -1).transpose(0, 2, 1, 3)
    if "q_layernorm" in attention:
        queries, keys = attention.q_layernorm(queries), attention.k_layernorm(keys)
    queries = attention.rope(queries.transpose(0, 2, 1, 3), offset=cache.offset)
    keys = attention.rope(keys.transpose(0, 2, 1, 3), offset=cache.offset)
    output = cache.attend(queries.astype(mx.float32), keys, values, attention.head_dim**-0.5)
    joined: mx.array = output.transpose(0, 2, 1, 3).reshape(rows, tokens, -1)
    return joined.astype(x.dtype)


class StableLmAttention(stablelm.Attention):  # type: ignore[misc]
    """StableLM's attention over slots."""

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        projected: mx.array = self.o_proj(_attend(self, x, cache))
        return projected


class PhiAttention(phi.PhiAttention):  # type: ignore[misc]
    """Phi's attention over slots."""

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        projected: mx.array = self.dense(_attend(self, x, cache))
        return projected


class CohereHeadNorm(nn.Module):  # type: ignore[misc]
    """Cohere's norm of heads in float32, rounded once as in transformers; mlx-lm rounds before the weight as well."""

    def __init__(self, heads: int, lanes: int, eps: float) -> None:
        super().__init__()
        self.weight = mx.zeros((heads, lanes))
        self._eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        normed = mx.fast.layer_norm(x.astype(mx.float32), None, None, self._eps)
        return (normed * self.weight).astype(x.dtype)


@dataclass
class NeoxArgs(gpt_neox.ModelArgs):  # type: ignore[misc]
    """mlx-lm's, with the width of the MLP, which it takes for four times that of the model."""

    intermediate_size: int = 0


class NeoxMlp(nn.Module):  # type: ignore[misc]
    """The matrices of GPT-NeoX's MLP; `NeoxDecoder` computes it."""

    def __init__(self, args: NeoxArgs) -> None:
        super().__init__()
        self.dense_h_to_4h = nn.Linear(args.hidden_size, args.intermediate_size)
        self.dense_4h_to_h = nn.Linear(args.intermediate_size, args.hidden_size)


class NeoxDecoder(nn.Module):  # type: ignore[misc]
    """GPT-NeoX's decoder up to the last norm, with the names of Llama's. mlx-lm's computes logits as well."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.embed_tokens = model.embed_in
        self.h = model.h
        self.norm = model.final_layer_norm

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        hidden = self.embed_tokens(tokens)
        for layer, own in zip(self.h, cache, strict=True):
            hidden = layer(hidden, None, cache=own)
        normed: mx.array = self.norm(hidden)
        return normed


def separate_head(model: Any, config: ModelConfig) -> None:
    """Take the head out of GPT-NeoX's decoder."""
    ungated("dense_h_to_4h", "dense_4h_to_h")(model, config)
    model.lm_head = model.model.embed_out
    model.model = NeoxDecoder(model.model)


def rotate_where_positions(model: Any, config: ModelConfig) -> None:
    """Let Cohere 2's layers all call their `rope`, which is the identity in those without positions."""
    for layer in model.layers:
        layer.self_attn.use_sliding_window = True


class ArceeMlp(nn.Module):  # type: ignore[misc]
    """Arcee's MLP in mlx-lm's Llama."""

    def __init__(self, args: Any) -> None:
        super().__init__()
        self.up_proj = nn.Linear(args.hidden_size, args.intermediate_size, bias=args.mlp_bias)
        self.down_proj = nn.Linear(args.intermediate_size, args.hidden_size, bias=args.mlp_bias)


class NnWithoutWeights:
    """`mlx.nn` with OLMo's LayerNorm, which has no weight, in place of RMS norm."""

    def __getattr__(self, name: str) -> Any:
        return getattr(nn, name)

    @staticmethod
    def RMSNorm(width: int, eps: float) -> nn.LayerNorm:
        return nn.LayerNorm(width, eps=eps, affine=False)


class Clipped(nn.Module):  # type: ignore[misc]
    """A module whose output is clipped to -bound and bound."""

    def __init__(self, module: nn.Module, bound: float) -> None:
        super().__init__()
        self.module = module
        self._bound = bound

    def __call__(self, x: mx.array) -> mx.array:
        return mx.clip(self.module(x), -self._bound, self._bound)


def clip_projections(model: Any, config: ModelConfig) -> None:
    """Clip OLMo's queries, keys and values."""
    if config.qkv_clip is None:
        return
    for layer in model.layers:
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(layer.self_attn, name, Clipped(getattr(layer.self_attn, name), config.qkv_clip))
