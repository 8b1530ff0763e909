"""Reads from config.json how the layers of a model mix rows: by attention, also to latents, or by a recurrent
network."""

import math
from collections.abc import Sequence

from workers.checkpoints.architectures.family import Family
from workers.checkpoints.architectures.fields import MAX_PARTS, Fields
from workers.checkpoints.architectures.parts import (
    GatedDelta,
    LatentAttention,
    LayerConfig,
    Mamba2,
    MixerKind,
    ShortConvolution,
)
from workers.checkpoints.weight_files import indexed_names

MAX_TAPS = 64
"""Above any real number of rows that a short convolution sees."""


def read_kinds(fields: Fields, family: Family, layers: int) -> tuple[MixerKind, ...]:
    """Read how each layer mixes rows: by `layer_types`, or by the family's rule. Raises `CheckpointError`."""
    if not family.mixers:
        attention: MixerKind = "attention"
        return (attention,) * layers
    if family.attention_gate and not fields.flag("attn_output_gate", True):
        raise fields.error("attn_output_gate", "false is not supported, only true")
    names = fields.get("layer_types")
    if names is None and family.mixer_rule is not None:
        names = family.mixer_rule(fields, layers)
    known = family.mixers
    if not isinstance(names, list) or len(names) != layers or any(str(name) not in known for name in names):
        expected = " or ".join(map(repr, known))
        raise fields.error("layer_types", f"is not {expected} for each of {layers} layers")
    kinds = tuple(known[name] for name in names)
    if "attention" not in kinds:
        raise fields.error("layer_types", "a model in which no layer attends is not supported")
    return kinds


def read_convolution(fields: Fields, plan: Sequence[LayerConfig]) -> ShortConvolution | None:
    """Read the sizes of LFM2's convolution. Raises `CheckpointError`."""
    if all(layer.kind != "convolution" for layer in plan):
        return None
    return ShortConvolution(fields.integer("hidden_size"), _taps(fields, "conv_L_cache", 3))


def read_delta(fields: Fields, plan: Sequence[LayerConfig]) -> GatedDelta | None:
    """Read the sizes of Qwen's gated delta network. Raises `CheckpointError`."""
    if all(layer.kind != "gated_delta" for layer in plan):
        return None
    keys, values = fields.integer("linear_num_key_heads", 16), fields.integer("linear_num_value_heads", 32)
    if values % keys:
        raise fields.error("linear_num_value_heads", f"{values} is no multiple of linear_num_key_heads, {keys}")
    key_dim, value_dim = fields.integer("linear_key_head_dim", 128), fields.integer("linear_value_head_dim", 128)
    return GatedDelta(keys, values, key_dim, value_dim, _taps(fields, "linear_conv_kernel_dim", 4))


def read_mamba(fields: Fields, plan: Sequence[LayerConfig]) -> Mamba2 | None:
    """Read the sizes of Mamba-2, by Granite's names. Raises `CheckpointError`."""
    if all(layer.kind != "mamba2" for layer in plan):
        return None
    heads, groups = fields.integer("mamba_n_heads", most=MAX_PARTS), fields.integer("mamba_n_groups", 1)
    if heads % groups:
        raise fields.error("mamba_n_groups", f"{groups} does not divide mamba_n_heads, {heads}")
    return Mamba2(
        heads,
        _head_dim(fields, heads),
        groups,
        fields.integer("mamba_d_state"),
        _taps(fields, "mamba_d_conv", 4),
        fields.flag("mamba_conv_bias", True),
        _step_limit(fields),
    )


def _head_dim(fields: Fields, heads: int) -> int:
    """Read the lanes of a head, which may be "auto" in Granite."""
    if fields.get("mamba_d_head", "auto") != "auto":
        return fields.integer("mamba_d_head")
    return max(1, fields.integer("mamba_expand") * fields.integer("hidden_size") // heads)


def _step_limit(fields: Fields) -> tuple[float, float]:
    """Read the least and the largest step, of which the latter may be infinite."""
    name = "time_step_limit"
    stated = fields.get(name, [0.0, math.inf])
    if not isinstance(stated, list) or len(stated) != 2 or any(type(each) not in (int, float) for each in stated):
        raise fields.error(name, "is not a list of two numbers")
    least, most = map(float, stated)
    if not 0 <= least < most or math.isinf(least):
        raise fields.error(name, f"{stated!r} is not a step from 0 on and a larger one")
    return least, most


KV_APART = "kv_b_proj_apart"
"""The field that says `LatentAttention.apart` of a GGUF file."""


def read_latent(fields: Fields, family: Family) -> LatentAttention | None:
    """Read the sizes of a family's latent attention. Raises `CheckpointError`."""
    if not family.latent:
        return None
    rotated = fields.integer("qk_rope_head_dim")
    if rotated % 2:
        raise fields.error("qk_rope_head_dim", f"{rotated} is odd; rotary positions need pairs")
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    return LatentAttention(
        rank=fields.integer("kv_lora_rank"),
        rotated=rotated,
        passed=fields.integer("qk_nope_head_dim"),
        values=fields.integer("v_head_dim", max(1, hidden // heads)),
        query_rank=None if fields.get("q_lora_rank") is None else fields.integer("q_lora_rank"),
        apart=fields.flag(KV_APART, "model.layers.0.self_attn.embed_q.weight" in indexed_names(fields.file)),
    )


def _taps(fields: Fields, name: str, default: int) -> int:
    taps = fields.integer(name, default, most=MAX_TAPS)
    if taps < 2:
        raise fields.error(name, f"{taps} is not from 2 to {MAX_TAPS}")
    return taps
