"""Families with multi-head latent attention."""

from collections.abc import Mapping
from dataclasses import replace

from workers.checkpoints.architectures.catalog.moe import (
    ROUTED,
    SHARED_EXPERTS,
    after_dense,
    layers_behind,
    sigmoid_router,
)
from workers.checkpoints.architectures.family import Family
from workers.checkpoints.architectures.fields import MAX_PARTS, Fields
from workers.checkpoints.architectures.parts import ExpertRouter, Names


def softmax_router(fields: Fields) -> ExpertRouter:
    """DeepSeek-V2's router: a softmax, of all experts or of those of the groups with the best ones."""
    scale = fields.number("routed_scaling_factor", 1.0)
    method = fields.get("topk_method", "greedy")
    if method == "greedy":
        return ExpertRouter(scale=scale)
    if method != "group_limited_greedy":
        raise fields.error("topk_method", f"{method!r} is not supported, only 'greedy' and 'group_limited_greedy'")
    groups, kept = (fields.integer(name, most=MAX_PARTS) for name in ("n_group", "topk_group"))
    return ExpertRouter(groups=groups, kept_groups=kept, group_best=1, scale=scale)


def listed_experts(fields: Fields, layers: int) -> tuple[bool, ...]:
    """GLM-4.7-Flash's rule: `mlp_layer_types` lists the layers with experts; otherwise all but the first have them."""
    kinds = fields.get("mlp_layer_types")
    if kinds is None:
        return after_dense("first_k_dense_replace", 1)(fields, layers)
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in ("dense", "sparse") for kind in kinds):
        raise fields.error("mlp_layer_types", f"is not 'dense' or 'sparse' for each of {layers} layers")
    return tuple(kind == "sparse" for kind in kinds)


def vary_v2(family: Family, fields: Fields) -> Family:
    """DeepSeek-V2: nothing but the usual weights of experts, in every layer behind the dense ones, is supported."""
    if fields.flag("norm_topk_prob", False):
        raise fields.error("norm_topk_prob", "true is not supported, only false")
    _check_every_layer(fields)
    return family


def vary_v3(family: Family, fields: Fields) -> Family:
    """DeepSeek-V3: `rope_interleave` decides on the order of lanes. Heads for multi-token prediction are layers behind
    the last one."""
    _check_every_layer(fields)
    if (method := fields.get("topk_method", "noaux_tc")) != "noaux_tc":
        raise fields.error("topk_method", f"{method!r} is not supported, only 'noaux_tc'")
    interleaved = fields.flag("rope_interleave", True)
    return replace(family, interleaved_rope=interleaved, other_tensors=layers_behind(fields))


def _check_every_layer(fields: Fields) -> None:
    if (step := fields.get("moe_layer_freq", 1)) != 1:
        raise fields.error("moe_layer_freq", f"{step!r} is not supported, only 1")


SIZES = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
V3 = Family(
    "DeepseekV3ForCausalLM",
    names=Names(experts=SHARED_EXPERTS),
    latent=True,
    experts=True,
    expert_ffn="moe_intermediate_size",
    normalizes_experts=None,
    shared_count="n_shared_experts",
    read_router=sigmoid_router,
    layers_with_experts=after_dense("first_k_dense_replace", 3),
    reads=ROUTED | {"n_shared_experts"},
    field_names={"num_experts": "n_routed_experts"},
    variant=vary_v3,
    defaults=SIZES
    | {
        "max_position_embeddings": 4096,
        "moe_intermediate_size": 2048,
        "n_group": 8,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 128,
        "num_experts_per_tok": 8,
        "num_nextn_predict_layers": 1,
        "q_lora_rank": 1536,
        "routed_scaling_factor": 2.5,
        "topk_group": 4,
    },
)
LATENT: Mapping[str, Family] = {
    "deepseek_v2": replace(
        V3,
        architecture="DeepseekV2ForCausalLM",
        interleaved_rope=True,
        normalizes_experts=False,
        read_router=softmax_router,
        layers_with_experts=after_dense("first_k_dense_replace", 0),
        variant=vary_v2,
        defaults=SIZES
        | {
            "moe_intermediate_size": 1407,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_attention_heads": 32,
            "q_lora_rank": 1536,
        },
    ),
    "deepseek_v3": V3,
    "glm4_moe_lite": replace(
        V3,
        architecture="Glm4MoeLiteForCausalLM",
        layers_with_experts=listed_experts,
        defaults={
            "kv_lora_rank": 512,
            "max_position_embeddings": 202752,
            "moe_intermediate_size": 1536,
            "n_routed_experts": 64,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "num_attention_heads": 20,
            "num_experts_per_tok": 4,
            "q_lora_rank": 768,
            "qk_nope_head_dim": 192,
            "qk_rope_head_dim": 64,
            "rms_norm_eps": 1e-5,
            "routed_scaling_factor": 1.8,
            "v_head_dim": 256,
        },
    ),
    "minicpm3": Family(
        "MiniCPM3ForCausalLM",
        latent=True,
        reads=frozenset({"dim_model_base", "embedding_multiplier", "scale_depth", "scale_emb"}),
        field_names={"embedding_multiplier": "scale_emb"},
        defaults={
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 32768,
            "num_attention_heads": 40,
            "kv_lora_rank": 256,
            "q_lora_rank": 768,
            "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 32,
            "scale_emb": 12,
            "scale_depth": 1.4,
            "dim_model_base": 256,
        },
    ),
}
"""The families by `model_type` of config.json."""
