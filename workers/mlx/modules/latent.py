"""Multi-head latent attention over slots, in the place of mlx-lm's: slots have latents, to which queries attend that
are multiplied by the matrices of their heads' keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import minicpm3

from workers.checkpoints.checkpoint import ModelConfig
from workers.mlx.modules.parts import apply_multipliers

OF_HEADS = (".kv_b_proj.", ".embed_q.", ".unembed_out.")
"""In the names of the tensors of keys and values of all heads, together or apart."""


def is_of_heads(name: str) -> bool:
    """Return whether a tensor is one of keys and values of all heads."""
    return any(part in name for part in OF_HEADS)


class HeadMatrices(nn.Module):  # type: ignore[misc]
    """A matrix [inputs, outputs] for each head."""

    def __init__(self, heads: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = mx.zeros((heads, inputs, outputs))

    def __call__(self, x: mx.array) -> mx.array:
        """Multiply x, [rows, heads, 1, inputs] -> [rows, heads, 1, outputs]."""
        multiplied: mx.array = x.transpose(2, 1, 0, 3) @ self.weight
        return multiplied.transpose(2, 1, 0, 3)


class SlotLatentAttention(nn.Module):  # type: ignore[misc]
    """Attention of DeepSeek, GLM 4.7 Flash and MiniCPM 3 models, for their modules of mlx-lm; `rope` and `scale` are
    set when the model is loaded."""

    def __init__(self, args: Any) -> None:
        super().__init__()
        self._heads, self._rank, self._rotated = args.num_attention_heads, args.kv_lora_rank, args.qk_rope_head_dim
        self._passed, hidden = args.qk_nope_head_dim, args.hidden_size
        queries = self._heads * (self._passed + self._rotated)
        self._low = args.q_lora_rank is not None
        if self._low:
            self.q_a_proj = nn.Linear(hidden, args.q_lora_rank, bias=False)
            self.q_a_layernorm = nn.RMSNorm(args.q_lora_rank, eps=1e-6)
            self.q_b_proj = nn.Linear(args.q_lora_rank, queries, bias=False)
        else:
            self.q_proj = nn.Linear(hidden, queries, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, self._rank + self._rotated, bias=False)
        self.kv_a_layernorm = nn.RMSNorm(self._rank, eps=1e-6)
        self.latent_keys = HeadMatrices(self._heads, self._passed, self._rank)
        self.latent_values = HeadMatrices(self._heads, self._rank, args.v_head_dim)
        self.o_proj = nn.Linear(self._heads * args.v_head_dim, hidden, bias=False)
        self.scale = 1.0
        self.rope: Any = None

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        rows = x.shape[0]
        queries = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))) if self._low else self.q_proj(x)
        passed, rotated = mx.split(queries.reshape(rows, self._heads, 1, -1), [self._passed], axis=-1)
        latent, lanes = mx.split(self.kv_a_proj_with_mqa(x)[:, None], [self._rank], axis=-1)
        latent = self.kv_a_layernorm(latent)
        asked = mx.concatenate([self.rope(rotated, offset=cache.offset), self.latent_keys(passed)], axis=-1)
        keys = mx.concatenate([self.rope(lanes, offset=cache.offset), latent], axis=-1)
        found = cache.attend(asked, keys, latent, self.scale)
        out: mx.array = self.o_proj(self.latent_values(found).reshape(rows, 1, -1))
        return out


def set_scales(model: Any, config: ModelConfig) -> None:
    """Give every layer the factor of its scores."""
    for layer in model.layers:
        layer.self_attn.scale = config.attention_scale


@dataclass
class MiniCpm3Args(minicpm3.ModelArgs):  # type: ignore[misc]
    """The fields of MiniCPM 3 with `v_head_dim`, which mlx-lm leaves out."""

    v_head_dim: int = 0


def adjust_minicpm3(model: Any, config: ModelConfig) -> None:
    """Apply MiniCPM 3's multipliers as Granite's, which mlx-lm rounds."""
    set_scales(model, config)
    apply_multipliers(model, config)


def split_heads(
    tensors: Mapping[str, mx.array], config: ModelConfig, groups: Mapping[str, tuple[int, int]]
) -> dict[str, mx.array]:
    """Replace the matrix of keys and values of all heads by those of each head. It is not quantized then: `groups` has
    the (group size, bits) of modules that are."""
    kind, out = config.latent, dict(tensors)
    if kind is None:
        return out
    for name in [name for name in out if name.endswith(".weight") and is_of_heads(name)]:
        module = name.removesuffix(".weight")
        weight = out.pop(name)
        if f"{module}.scales" in out:
            size, bits = groups[module]
            scales, biases = out.pop(f"{module}.scales"), out.pop(f"{module}.biases")
            weight = mx.dequantize(weight, scales, biases, size, bits)
        prefix, _, part = module.rpartition(".")
        if part == "embed_q":
            out[f"{prefix}.latent_keys.weight"] = weight.reshape(config.heads, kind.rank, -1).swapaxes(1, 2)
            continue
        heads = weight.reshape(config.heads, -1, kind.rank)
        values = heads[:, kind.passed :] if part == "kv_b_proj" else heads
        out[f"{prefix}.latent_values.weight"] = values.swapaxes(1, 2)
        if part == "kv_b_proj":
            out[f"{prefix}.latent_keys.weight"] = heads[:, : kind.passed]
    return out
