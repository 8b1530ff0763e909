"""Families with recurrent layers, with latent attention or with a mixture of experts."""

from collections.abc import Mapping
from typing import Any

from tests.families.mixers import (
    gpt_oss_layer,
    granite_mixer,
    lfm2_mixer,
    phi_layer,
    qwen3_5_mixer,
    qwen3_next_mixer,
)
from tests.families.mlps import (
    ernie_experts,
    granite_experts,
    granite_mlp,
    lfm2_experts,
    lfm2_mlp,
    olmoe_experts,
    routed_experts,
    shared_experts,
    softmax_experts,
)
from tests.families.plain_families import MULTIPLIED
from tests.families.traits import WINDOW, Traits
from tests.reference.layers import latent_layers, mamba_layers

QWEN_EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 80,
    "norm_topk_prob": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}


def _hybrid_fields(layers: int) -> dict[str, Any]:
    return {
        "layer_types": ["full_attention" if layer % 2 else "linear_attention" for layer in range(layers)],
        "partial_rotary_factor": 0.5,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
    }


def _gpt_oss_fields(layers: int) -> dict[str, Any]:
    return {
        "attention_bias": True,
        "layer_types": ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)],
        "sliding_window": WINDOW,
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "swiglu_limit": 7.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 512,
            "truncate": False,
        },
    }


HYBRID_FAMILIES: Mapping[str, Traits] = {
    "lfm2": Traits(
        "Lfm2ForCausalLM",
        lambda layers: {
            "norm_eps": 2e-5,
            "layer_types": ["full_attention" if layer % 2 else "conv" for layer in range(layers)],
            "conv_L_cache": 3,
            "conv_bias": False,
            "block_auto_adjust_ff_dim": True,
            "block_ffn_dim_multiplier": 1.7,
            "block_multiple_of": 32,
        },
        optional_bias=False,
        norms=("operator_norm", "ffn_norm"),
        head_norm="each",
        mlp=lfm2_mlp,
        mixer=lfm2_mixer,
        names=("model.embed_tokens", "model.layers.", "model.embedding_norm", "lm_head"),
    ),
    "qwen3_5_text": Traits(
        "Qwen3_5ForCausalLM",
        _hybrid_fields,
        centred_norms=True,
        head_norm="each",
        mixer=qwen3_5_mixer,
    ),
    "deepseek_v2": Traits(
        "DeepseekV2ForCausalLM",
        lambda layers: (
            latent_layers.SIZES
            | latent_layers.EXPERTS
            | {"q_lora_rank": None, "norm_topk_prob": False, "topk_method": "group_limited_greedy"}
        ),
        optional_bias=False,
        mixer=latent_layers.latent_attention,
        mlp=softmax_experts,
        without=("head_dim",),
    ),
    "deepseek_v3": Traits(
        "DeepseekV3ForCausalLM",
        lambda layers: (
            latent_layers.SIZES
            | latent_layers.EXPERTS
            | {"norm_topk_prob": True, "rope_interleave": True, "num_nextn_predict_layers": 0}
        ),
        optional_bias=False,
        mixer=latent_layers.latent_attention,
        mlp=routed_experts,
        without=("head_dim",),
    ),
    "glm4_moe_lite": Traits(
        "Glm4MoeLiteForCausalLM",
        lambda layers: (
            latent_layers.SIZES
            | latent_layers.EXPERTS
            | {"n_group": 1, "topk_group": 1, "norm_topk_prob": True, "rope_interleave": False}
        ),
        optional_bias=False,
        mixer=latent_layers.latent_attention,
        mlp=routed_experts,
        without=("head_dim",),
    ),
    "minicpm3": Traits(
        "MiniCPM3ForCausalLM",
        lambda layers: latent_layers.SIZES | {"scale_emb": 2.5, "scale_depth": 1.1, "dim_model_base": 48},
        mixer=latent_layers.latent_attention,
        optional_bias=False,
        without=("head_dim",),
    ),
    "qwen2_moe": Traits(
        "Qwen2MoeForCausalLM",
        lambda layers: QWEN_EXPERTS | {"use_sliding_window": False, "qkv_bias": True},
        optional_bias=False,
        qkv_bias=True,
        mlp=shared_experts,
    ),
    "olmoe": Traits(
        "OlmoeForCausalLM",
        lambda layers: {"num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": False},
        head_norm="all",
        mlp=olmoe_experts,
    ),
    "granitemoe": Traits(
        "GraniteMoeForCausalLM",
        lambda layers: MULTIPLIED | {"num_local_experts": 6, "num_experts_per_tok": 3},
        mlp=granite_experts,
    ),
    "granitemoeshared": Traits(
        "GraniteMoeSharedForCausalLM",
        lambda layers: MULTIPLIED | {"num_local_experts": 6, "num_experts_per_tok": 3, "shared_intermediate_size": 80},
        mlp=granite_experts,
    ),
    "gpt_oss": Traits("GptOssForCausalLM", _gpt_oss_fields, layer=gpt_oss_layer),
    "qwen3_5_moe_text": Traits(
        "Qwen3_5MoeForCausalLM",
        lambda layers: QWEN_EXPERTS | _hybrid_fields(layers),
        centred_norms=True,
        head_norm="each",
        mixer=qwen3_5_mixer,
        mlp=shared_experts,
    ),
    "qwen3_next": Traits(
        "Qwen3NextForCausalLM",
        lambda layers: QWEN_EXPERTS | _hybrid_fields(layers) | {"norm_topk_prob": True},
        centred_norms=True,
        head_norm="each",
        mixer=qwen3_next_mixer,
        mlp=shared_experts,
    ),
    "glm4_moe": Traits(
        "Glm4MoeForCausalLM",
        lambda layers: {
            "attention_bias": True,
            "use_qk_norm": True,
            "partial_rotary_factor": 0.5,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_shared_experts": 2,
            "moe_intermediate_size": 48,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            "norm_topk_prob": True,
            "first_k_dense_replace": 1,
            "num_nextn_predict_layers": 1,
        },
        optional_bias=False,
        qkv_bias=True,
        head_norm="each",
        mlp=routed_experts,
        extra_layer=True,
    ),
    "ernie4_5_moe": Traits(
        "Ernie4_5_MoeForCausalLM",
        lambda layers: {
            "use_bias": False,
            "moe_num_experts": 6,
            "moe_k": 3,
            "moe_num_shared_experts": 2,
            "moe_intermediate_size": 48,
            "moe_layer_start_index": 1,
        },
        optional_bias=False,
        mlp=ernie_experts,
    ),
    "phimoe": Traits(
        "PhimoeForCausalLM",
        lambda layers: {
            "attention_bias": True,
            "lm_head_bias": True,
            "sliding_window": None,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "router_jitter_noise": 0.2,
        },
        optional_bias=False,
        layer=phi_layer,
        norm_bias=True,
        head_bias=True,
    ),
    "lfm2_moe": Traits(
        "Lfm2MoeForCausalLM",
        lambda layers: {
            "norm_eps": 2e-5,
            "layer_types": ["full_attention" if layer % 2 else "conv" for layer in range(layers)],
            "conv_L_cache": 3,
            "conv_bias": False,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "num_dense_layers": 1,
            "use_expert_bias": True,
            "routed_scaling_factor": 1.5,
            "norm_topk_prob": True,
        },
        optional_bias=False,
        norms=("operator_norm", "ffn_norm"),
        head_norm="each",
        mlp=lfm2_experts,
        mixer=lfm2_mixer,
        names=("model.embed_tokens", "model.layers.", "model.embedding_norm", "lm_head"),
    ),
    "granitemoehybrid": Traits(
        "GraniteMoeHybridForCausalLM",
        lambda layers: MULTIPLIED | mamba_layers.granite_fields(layers),
        mixer=granite_mixer,
        mlp=granite_mlp,
    ),
    "nemotron_h": Traits(
        "NemotronHForCausalLM",
        mamba_layers.nemotron_fields,
        layer=mamba_layers.nemotron_layer,
        names=("backbone.embeddings", "backbone.layers.", "backbone.norm_f", "lm_head"),
        without=("rms_norm_eps", "hidden_act"),
    ),
}
"""By config.json's `model_type`."""
