"""Architectures with multi-head latent attention in GGUF files: DeepSeek V2 and V3, and MiniCPM 3."""

from collections.abc import Mapping

from workers.checkpoints.architectures.mixers import KV_APART
from workers.checkpoints.gguf.keys import Keys
from workers.checkpoints.gguf.layouts.architecture import BEFORE, MLP, Architecture, Fields, has_tensor, set_family
from workers.checkpoints.gguf.layouts.mixtures import ROUTER_BIAS, SHARED_EXPERTS, SIGMOID
from workers.checkpoints.gguf.rotary import YARN

LATENT_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.embed_q",
    "attn_v_b": "self_attn.unembed_out",
    "attn_output": "self_attn.o_proj",
}
OF_HEADS = frozenset({"attn_k_b", "attn_v_b"})
SOFTMAX = 1
"""llama.cpp's number of the softmax among the functions of routers, which files of DeepSeek V2 may leave out."""
YARN_LOG = 0.1
"""Files of DeepSeek have this part of `mscale_all_dim`, https://github.com/ggml-org/llama.cpp/pull/17945."""
MINICPM3 = {"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 256}
"""Multipliers that no file states, as llama.cpp sets them."""


def read_latents(keys: Keys, fields: Fields) -> None:
    """Read the sizes of latents and lanes. Those of a head are under keys of their own where the file has the matrices
    of keys and values apart, and is computed as if all heads had one key."""
    apart = has_tensor(keys, "attn_k_b.weight")
    rank, rotated = keys.integer("attention.kv_lora_rank"), keys.integer("rope.dimension_count")
    query, values = fields["head_dim"], keys.get("attention.value_length") or _value_lanes(keys, fields)
    if keys.get("attention.key_length_mla") is not None:
        for name, length in (("attention.key_length", rank + rotated), ("attention.value_length", rank)):
            if keys.integer(name) != length:
                raise keys.error(name, f"is not {length}, as the lanes of a latent say")
        query, values = keys.integer("attention.key_length_mla"), keys.integer("attention.value_length_mla")
    if query <= rotated:
        raise keys.error("rope.dimension_count", f"{rotated} is not below the {query} lanes of a key")
    fields |= {
        "kv_lora_rank": rank,
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": query - rotated,
        "q_lora_rank": keys.count("attention.q_lora_rank") or None,
        KV_APART: apart,
        "num_key_value_heads": fields["num_attention_heads"],
    }
    fields["v_head_dim"] = values
    del fields["head_dim"]


def _value_lanes(keys: Keys, fields: Fields) -> int:
    """Return the lanes of a head's values by the matrix of keys and values, where no key states them."""
    rotated = keys.integer("rope.dimension_count")
    tensor = keys.model.tensors.get("blk.0.attn_kv_b.weight")
    if tensor is None:
        raise keys.error("attention.value_length", "is missing, and so is the tensor blk.0.attn_kv_b.weight")
    lanes: int = tensor.shape[0] // fields["num_attention_heads"] - (fields["head_dim"] - rotated)
    if lanes < 1:
        raise keys.error("attention.key_length", f"does not fit the shape of {tensor.name}, {tensor.shape}")
    return lanes


def read_deepseek(keys: Keys, fields: Fields) -> None:
    """A router with sigmoids is that of V3, and one with a softmax that of V2."""
    read_latents(keys, fields)
    kind = keys.get("expert_gating_func", SOFTMAX)
    if kind not in (0, SOFTMAX, SIGMOID):
        raise keys.error("expert_gating_func", f"{kind!r} is not supported for this architecture")
    groups = keys.integer("expert_group_count", 1)
    fields |= {
        "n_routed_experts": keys.integer("expert_count"),
        "num_experts_per_tok": keys.integer("expert_used_count"),
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "n_shared_experts": keys.count("expert_shared_count"),
        "first_k_dense_replace": keys.count("leading_dense_block_count"),
        "n_group": groups,
        "topk_group": keys.integer("expert_group_used_count", 1),
        "routed_scaling_factor": keys.number("expert_weights_scale", 1.0),
        "norm_topk_prob": bool(keys.get("expert_weights_norm", False)),
        "num_nextn_predict_layers": 0,
    }
    if kind == SIGMOID:
        set_family(fields, "deepseek_v3")
    else:
        fields["topk_method"] = "greedy" if groups == 1 else "group_limited_greedy"
    plan, scale = fields.get("rope_scaling"), keys.optional_number("rope.scaling.yarn_log_multiplier")
    if plan is not None and plan["rope_type"] == YARN:
        scale = 0.0 if scale is None else round(scale / YARN_LOG, 6)
        plan |= {"mscale": scale, "mscale_all_dim": scale}


def read_minicpm3(keys: Keys, fields: Fields) -> None:
    read_latents(keys, fields)
    fields |= MINICPM3


LATENT: Mapping[str, Architecture] = {
    "deepseek2": Architecture(
        "deepseek_v2",
        LATENT_ATTENTION | MLP | BEFORE | SHARED_EXPERTS | {ROUTER_BIAS: "mlp.gate.e_score_correction_bias"},
        read=read_deepseek,
        precise=frozenset({"ffn_gate_inp"}) | OF_HEADS,
        merged=OF_HEADS,
        latent=True,
    ),
    "minicpm3": Architecture("minicpm3", LATENT_ATTENTION | MLP | BEFORE, read=read_minicpm3, latent=True),
}
"""The architectures by `general.architecture`."""
