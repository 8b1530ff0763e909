"""Mixtures of experts in GGUF files: the names of their tensors, and their fields of config.json."""

from collections.abc import Mapping

from workers.checkpoints.gguf.keys import Keys
from workers.checkpoints.gguf.layouts.architecture import (
    ATTENTION,
    LLAMA,
    MLP,
    Architecture,
    Fields,
    read_experts,
    read_vision_language,
    read_window,
)
from workers.checkpoints.gguf.rotary import YARN

ROUTER_BIAS = "exp_probs_b.bias"
"""The bias of a router."""
SIGMOID = 2
"""llama.cpp's number of the sigmoid among the functions of routers."""
QWEN3_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
QWEN2_EXPERTS = QWEN3_EXPERTS | {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
SHARED_EXPERTS = QWEN3_EXPERTS | {
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
GPT_OSS = {
    "attn_sinks.weight": "self_attn.sinks",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.router",
    **{name: module for name, module in QWEN3_EXPERTS.items() if name.endswith("_exps")},
}
MIXTRAL_EXPERTS = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}


def read_qwen3_moe(keys: Keys, fields: Fields) -> None:
    read_experts(keys, fields)
    fields["moe_intermediate_size"] = keys.integer("expert_feed_forward_length")
    fields["norm_topk_prob"] = True


def read_qwen3_vl_moe(keys: Keys, fields: Fields) -> None:
    """The language model of Qwen3-VL with experts: a text adds no rows of a deep stack."""
    read_qwen3_moe(keys, fields)
    read_vision_language(keys, fields)


def read_qwen2_moe(keys: Keys, fields: Fields) -> None:
    """The weights of chosen experts are not normalized, whatever a file states."""
    read_experts(keys, fields)
    fields["moe_intermediate_size"] = keys.integer("expert_feed_forward_length")
    fields["shared_expert_intermediate_size"] = keys.integer("expert_shared_feed_forward_length")
    fields |= {"qkv_bias": True, "norm_topk_prob": False}


def read_glm4_moe(keys: Keys, fields: Fields) -> None:
    """Read a GLM 4.5 without its layers for multi-token prediction."""
    if (kind := keys.get("expert_gating_func", SIGMOID)) not in (0, SIGMOID):
        raise keys.error("expert_gating_func", f"{kind!r} is not supported for this architecture, only {SIGMOID}")
    fields |= {
        "num_nextn_predict_layers": 0,
        "attention_bias": "blk.0.attn_q.bias" in keys.model.tensors,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in keys.model.tensors,
        "n_routed_experts": keys.integer("expert_count"),
        "num_experts_per_tok": keys.integer("expert_used_count"),
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "n_shared_experts": keys.get("expert_shared_count", 0),
        "first_k_dense_replace": keys.get("leading_dense_block_count", 0),
        "n_group": keys.integer("expert_group_count", 1),
        "topk_group": keys.integer("expert_group_used_count", 1),
        "routed_scaling_factor": keys.number("expert_weights_scale", 1.0),
        "norm_topk_prob": keys.get("expert_weights_norm", True),
    }
    fields.setdefault("partial_rotary_factor", 1.0)


def read_ernie_moe(keys: Keys, fields: Fields) -> None:
    keys.get(
        "expert_shared_feed_forward_length"
    )  # follows from the number of shared experts; files state another width
    fields |= {
        "moe_num_experts": keys.integer("expert_count"),
        "moe_k": keys.integer("expert_used_count"),
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "moe_num_shared_experts": keys.get("expert_shared_count", 0),
        "moe_layer_start_index": keys.get("leading_dense_block_count", 0),
        "moe_layer_interval": keys.integer("interleave_moe_layer_step", 1),
        "moe_use_aux_free": any(name.endswith(f".{ROUTER_BIAS}") for name in keys.model.tensors),
    }


def read_gpt_oss(keys: Keys, fields: Fields) -> None:
    """The ends of YaRN's ramp are whole lanes in llama.cpp, but not as the model was trained."""
    read_window(keys, fields)
    read_experts(keys, fields)
    if keys.integer("expert_feed_forward_length", fields["intermediate_size"]) != fields["intermediate_size"]:
        raise keys.error("expert_feed_forward_length", "is not feed_forward_length")
    fields["attention_bias"] = True
    if fields.get("rope_scaling", {}).get("rope_type") == YARN:
        fields["rope_scaling"]["truncate"] = False


def read_phimoe(keys: Keys, fields: Fields) -> None:
    """Read a Phi-3.5-MoE, whose window is all positions, in files of which some state it."""
    read_window(keys, fields)
    read_experts(keys, fields)
    fields["lm_head_bias"] = "output.bias" in keys.model.tensors
    # LongRoPE reads it; files of models without it state it, too.
    keys.get("rope.scaling.original_context_length")
    keys.get("rope.scaling.attn_factor")


MIXTURES: Mapping[str, Architecture] = {
    "qwen2moe": Architecture("qwen2_moe", LLAMA | QWEN2_EXPERTS, read=read_qwen2_moe),
    "qwen3moe": Architecture("qwen3_moe", LLAMA | QWEN3_EXPERTS, read=read_qwen3_moe),
    "qwen3vlmoe": Architecture("qwen3_moe", LLAMA | QWEN3_EXPERTS, read=read_qwen3_vl_moe),
    "ernie4_5-moe": Architecture(
        "ernie4_5_moe",
        LLAMA | SHARED_EXPERTS | {ROUTER_BIAS: "mlp.moe_statics.e_score_correction_bias"},
        read=read_ernie_moe,
        theta=500000.0,
    ),
    "phimoe": Architecture("phimoe", LLAMA | MIXTRAL_EXPERTS, read=read_phimoe),
    "gpt-oss": Architecture("gpt_oss", ATTENTION | GPT_OSS, read=read_gpt_oss),
    "glm4moe": Architecture(
        "glm4_moe",
        ATTENTION
        | MLP
        | SHARED_EXPERTS
        | {"post_attention_norm": "post_attention_layernorm", ROUTER_BIAS: "mlp.gate.e_score_correction_bias"},
        read=read_glm4_moe,
    ),
}
"""The architectures by `general.architecture`."""
