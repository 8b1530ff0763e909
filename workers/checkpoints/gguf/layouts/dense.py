"""Dense architectures with LayerNorm, MLPs without gates, parallel layers or interleaved rotations, and others."""

from collections.abc import Mapping

from workers.checkpoints.gguf.keys import Keys
from workers.checkpoints.gguf.layouts.architecture import (
    AFTER,
    ATTENTION,
    LLAMA,
    MLP,
    Architecture,
    Fields,
    has_tensor,
    layer_types,
    read_window,
    set_family,
)
from workers.checkpoints.gguf.layouts.orders import MAX_ROWS, StoredOrder, heads_from_parts

UNGATED = ATTENTION | {"ffn_norm": "post_attention_layernorm", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
GPT_NEOX = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "attention.query_key_value",
    "attn_output": "attention.dense",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
GLM4 = ATTENTION | {
    "post_attention_norm": "post_self_attn_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}


def read_biases(keys: Keys, fields: Fields) -> None:
    """Read from the tensors whether queries, keys and values have biases, and the MLP."""
    fields["attention_bias"] = has_tensor(keys, "attn_q.bias")
    fields["mlp_bias"] = has_tensor(keys, "ffn_up.bias")


def read_starcoder2(keys: Keys, fields: Fields) -> None:
    """llama.cpp's files state no window, and it has none."""
    read_biases(keys, fields)
    fields["sliding_window"] = None


def read_stablelm(keys: Keys, fields: Fields) -> None:
    read_biases(keys, fields)
    fields["use_parallel_residual"] = not has_tensor(keys, "ffn_norm.weight")
    fields["qk_layernorm"] = has_tensor(keys, "attn_q_norm.weight")
    keys.get("use_parallel_residual")  # what llama.cpp does not look at: the tensors decide


def read_gpt_neox(keys: Keys, fields: Fields) -> None:
    fields["attention_bias"] = has_tensor(keys, "attn_qkv.bias")
    fields["use_parallel_residual"] = bool(keys.get("use_parallel_residual", True))


def order_gpt_neox(keys: Keys) -> Mapping[str, StoredOrder]:
    heads = keys.integer("attention.head_count")
    keys.check_total("embedding_length", 3 * keys.integer("embedding_length"), MAX_ROWS)
    return {"attn_qkv": heads_from_parts(heads, keys.integer("embedding_length") // heads)}


def read_cohere(keys: Keys, fields: Fields) -> None:
    fields["logit_scale"] = keys.number("logit_scale")
    fields["use_qk_norm"] = has_tensor(keys, "attn_q_norm.weight")


def read_cohere2(keys: Keys, fields: Fields) -> None:
    """Every fourth layer has no window and no positions."""
    fields["logit_scale"] = keys.number("logit_scale")
    read_window(keys, fields)


def read_exaone4(keys: Keys, fields: Fields) -> None:
    read_window(keys, fields)
    pattern = keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        fields["layer_types"] = layer_types(keys, pattern)
    elif pattern is not None:
        fields["sliding_window_pattern"] = keys.integer("attention.sliding_window_pattern")


def read_olmo(keys: Keys, fields: Fields) -> None:
    fields["clip_qkv"] = keys.optional_number("attention.clamp_kqv")


def read_mistral3(keys: Keys, fields: Fields) -> None:
    """Mistral's wrapped models are Mistral, or Ministral 3, whose queries grow with the position."""
    growth = keys.optional_number("attention.temperature_scale")
    scale = keys.optional_number("rope.scaling.yarn_log_multiplier")
    fields["sliding_window"] = None
    if growth is None:
        return
    set_family(fields, "ministral3")
    plan = fields.get("rope_scaling")
    if plan is None:
        raise keys.error("rope.scaling.type", "is missing, beside attention.temperature_scale")
    plan |= {"rope_theta": fields["rope_theta"], "llama_4_scaling_beta": growth}
    if scale is not None:
        plan |= {"mscale": scale, "mscale_all_dim": scale}


DENSE: Mapping[str, Architecture] = {
    "starcoder2": Architecture(
        "starcoder2", UNGATED | {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}, read=read_starcoder2
    ),
    "stablelm": Architecture(
        "stablelm",
        LLAMA
        | {
            "attn_q_norm": "self_attn.q_layernorm.norms.{}",
            "attn_k_norm": "self_attn.k_layernorm.norms.{}",
        },
        read=read_stablelm,
    ),
    "gptneox": Architecture("gpt_neox", GPT_NEOX, read=read_gpt_neox, orders=order_gpt_neox),
    "command-r": Architecture("cohere", read=read_cohere),
    "cohere2": Architecture("cohere2", read=read_cohere2),
    "phi2": Architecture(
        "phi",
        ATTENTION | {"attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"},
    ),
    "exaone4": Architecture("exaone4", ATTENTION | MLP | AFTER, read=read_exaone4),
    "nemotron": Architecture("nemotron", UNGATED, read=read_biases),
    "olmo": Architecture("olmo", ATTENTION | MLP, paired=True, read=read_olmo),
    "arcee": Architecture("arcee", UNGATED, paired=True, read=read_biases),
    "ernie4_5": Architecture("ernie4_5", read=read_biases),
    "mistral3": Architecture("mistral", paired=True, read=read_mistral3),
    "glm4": Architecture("glm4", GLM4, read=read_biases),
}
"""The architectures by `general.architecture`."""
