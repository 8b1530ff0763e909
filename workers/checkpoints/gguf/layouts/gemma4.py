"""Gemma 4 in GGUF files: two shapes of keys and values, embeddings of each layer, and experts beside the MLP."""

from collections.abc import Mapping

import numpy as np

from workers.checkpoints.gguf.keys import Keys
from workers.checkpoints.gguf.layouts.architecture import (
    AROUND,
    ATTENTION,
    MLP,
    Architecture,
    Fields,
    layer_types,
)
from workers.checkpoints.gguf.layouts.orders import StoredOrder
from workers.checkpoints.gguf.rotary import FREQUENCIES

UNROTATED = float(np.float32(1e30))
"""The divisor of the frequencies of lanes without positions."""
NAMES = {
    "layer_output_scale.weight": "layer_scalar",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "ffn_gate_inp": "router.proj",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_gate_exps": "experts.{}.gate_proj",
    "ffn_up_exps": "experts.{}.up_proj",
    "ffn_down_exps": "experts.{}.down_proj",
    "ffn_down_exps.scale": "router.per_expert_scale",
}
OUTSIDE = {
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
GATES, UPS = "experts.{}.gate_proj", "experts.{}.up_proj"


def read_gemma4(keys: Keys, fields: Fields) -> None:
    """Heads of the metadata's `key_length` are those of layers without a window."""
    pattern = keys.get("attention.sliding_window_pattern")
    layers = fields["num_hidden_layers"]
    if not isinstance(pattern, list) or len(pattern) != layers:
        raise keys.error("attention.sliding_window_pattern", f"is not true or false for each of {layers} layers")
    kinds = layer_types(keys, pattern)
    fields |= {"layer_types": kinds, "sliding_window": keys.integer("attention.sliding_window")}
    fields["final_logit_softcapping"] = keys.optional_number("final_logit_softcapping")
    _read_heads(keys, fields)
    _read_rotations(keys, fields)
    _read_mlp(keys, fields)
    width = keys.get("embedding_length_per_layer_input", 0)
    fields["hidden_size_per_layer_input"] = width
    table = keys.model.tensors.get("per_layer_token_embd.weight")
    fields["vocab_size_per_layer_input"] = fields["vocab_size"] if table is None else table.shape[0]


def _read_heads(keys: Keys, fields: Fields) -> None:
    """Read both shapes of keys and values. Layers without a matrix of values take their keys."""
    kinds, lanes = fields["layer_types"], keys.integer("attention.key_length_swa")
    for name in ("attention.value_length_swa", "rope.dimension_count_swa"):
        if keys.integer(name, lanes) != lanes:
            raise keys.error(name, f"is not attention.key_length_swa, {lanes}")
    counts = keys.integers("attention.head_count_kv", len(kinds))
    of_kind = {kind: {count for count, each in zip(counts, kinds, strict=True) if each == kind} for kind in kinds}
    if any(len(found) > 1 for found in of_kind.values()):
        raise keys.error("attention.head_count_kv", "is not the same for all layers of a kind")
    last = counts[-1]
    windowed = next((count for count, kind in zip(counts, kinds, strict=True) if kind == "sliding_attention"), last)
    own = len(kinds) - keys.count("attention.shared_kv_layers")
    full = [number for number, kind in enumerate(kinds[: max(0, own)]) if kind == "full_attention"]
    same = bool(full) and all(f"blk.{number}.attn_v.weight" not in keys.model.tensors for number in full)
    whole = next((count for count, kind in zip(counts, kinds, strict=True) if kind == "full_attention"), windowed)
    if whole != windowed and not same:
        raise keys.error("attention.head_count_kv", "differs between layers, which have matrices of values")
    fields |= {
        "global_head_dim": fields["head_dim"],
        "head_dim": lanes,
        "num_key_value_heads": windowed,
        "num_global_key_value_heads": whole if same else None,
        "attention_k_eq_v": same,
        "num_kv_shared_layers": len(kinds) - own,
    }


def _read_rotations(keys: Keys, fields: Fields) -> None:
    """Read the part of the lanes that has positions where there is no window from the divisors of frequencies."""
    plan = fields.pop("rope_scaling", None)
    if plan is None or FREQUENCIES not in keys.model.tensors:
        raise keys.model.error(FREQUENCIES, "the tensor is missing")
    divisors = plan["short_factor"]
    rotated = divisors.count(1.0)
    if not rotated or divisors != [1.0] * rotated + [UNROTATED] * (len(divisors) - rotated):
        raise keys.model.error(FREQUENCIES, f"is not 1 for rotated lanes, and {UNROTATED:g} for the others behind them")
    fields["rope_parameters"] = {
        "sliding_attention": {"rope_type": "default", "rope_theta": keys.number("rope.freq_base_swa", 10000.0)},
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": rotated / len(divisors),
            "rope_theta": fields.pop("rope_theta"),
        },
    }


def _read_mlp(keys: Keys, fields: Fields) -> None:
    """Read the widths of the MLPs, which may be twice as wide behind the layers with keys of their own, and experts."""
    layers, shared = fields["num_hidden_layers"], fields["num_kv_shared_layers"]
    widths = keys.integers("feed_forward_length", layers)
    width, own = widths[0], layers - shared
    wide = shared > 0 and widths[-1] == 2 * width
    if widths != [width] * own + [width * (2 if wide else 1)] * shared:
        problem = f"is not {width} for all layers, or twice as much for the last {shared}"
        raise keys.error("feed_forward_length", problem)
    fields |= {"intermediate_size": width, "use_double_wide_mlp": wide, "enable_moe_block": False}
    if keys.get("expert_count"):
        fields |= {
            "enable_moe_block": True,
            "num_experts": keys.integer("expert_count"),
            "num_experts_per_tok": keys.integer("expert_used_count"),
            "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        }
    keys.get("expert_used_count")
    keys.get("expert_feed_forward_length")


def order_gates_and_ups(keys: Keys) -> Mapping[str, StoredOrder]:
    """Experts have their gates before their other inputs in one matrix, unless a file has both apart."""
    merged = next(
        (each for name, each in keys.model.tensors.items() if name.endswith(".ffn_gate_up_exps.weight")), None
    )
    if merged is None:
        return {}
    width = keys.integer("expert_feed_forward_length")
    if len(merged.shape) != 3 or merged.shape[1] != 2 * width:
        problem = f"has the shape {merged.shape}, not twice {width} rows of each expert"
        raise keys.model.error(merged.name, problem)
    rows = np.arange(2 * width)
    return {
        GATES: StoredOrder(rows[:width], stored_rows=2 * width),
        UPS: StoredOrder(rows[width:], stored_rows=2 * width),
    }


GEMMA4: Mapping[str, Architecture] = {
    "gemma4": Architecture(
        "gemma4_text",
        ATTENTION | MLP | AROUND | NAMES,
        read=read_gemma4,
        theta=1_000_000.0,
        orders=order_gates_and_ups,
        split={"ffn_gate_up_exps": (GATES, UPS)},
        outside=OUTSIDE,
        listed=frozenset({"attention.head_count_kv", "feed_forward_length"}),
    ),
}
"""The architecture by `general.architecture`."""
