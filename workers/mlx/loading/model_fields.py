"""Fields of config.json for mlx-lm's modules, as both backends read them."""

from typing import Any

from workers.checkpoints.architectures.parts import Experts
from workers.checkpoints.checkpoint import ModelConfig
from workers.mlx.architecture import Adapter
from workers.mlx.hybrid.mamba import mamba_fields


def attention_interval(config: ModelConfig) -> int | None:
    """Return n if every nth layer has attention, and no other; None otherwise."""
    found = [number + 1 for number, layer in enumerate(config.plan) if layer.kind == "attention"]
    if not found or found != list(range(found[0], config.layers + 1, found[0])):
        return None
    return found[0]


def _latent_config(config: ModelConfig) -> dict[str, Any]:
    """Fields of models with latent attention, see `model_fields`. Their factor of scores is set later."""
    kind = config.latent
    if kind is None:
        return {}
    return {
        "kv_lora_rank": kind.rank,
        "q_lora_rank": kind.query_rank,
        "qk_nope_head_dim": kind.passed,
        "qk_rope_head_dim": kind.rotated,
        "v_head_dim": kind.values,
        "scale_emb": 1.0,
        "scale_depth": config.layers**0.5,
        "dim_model_base": config.hidden_size,
    }


def _hybrid_config(config: ModelConfig) -> dict[str, Any]:
    """Fields of hybrid models, see `model_fields`."""
    if config.delta is not None:
        return {
            "full_attention_interval": attention_interval(config),
            "linear_num_value_heads": config.delta.value_heads,
            "linear_num_key_heads": config.delta.key_heads,
            "linear_key_head_dim": config.delta.key_dim,
            "linear_value_head_dim": config.delta.value_dim,
            "linear_conv_kernel_dim": config.delta.taps,
        }
    if config.mamba is not None:
        return mamba_fields(config, config.mamba)
    if config.convolution is None:
        return {}
    return {
        "norm_eps": config.rms_eps,
        "conv_bias": False,
        "conv_L_cache": config.convolution.taps,
        "block_dim": config.hidden_size,
        "block_ff_dim": config.ffn,
        "block_multiple_of": 1,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "full_attn_idxs": [number for number, layer in enumerate(config.plan) if layer.kind == "attention"],
    }


def _router_config(config: ModelConfig, experts: Experts) -> dict[str, Any]:
    """Fields of mixtures whose router `RoutedExperts` replaces, and of their dense layers, see `model_fields`."""
    dense = next((number for number, layer in enumerate(config.plan) if layer.experts), config.layers)
    return {
        "n_routed_experts": experts.count,
        "n_shared_experts": experts.shared_ffn // experts.ffn or None,
        "first_k_dense_replace": dense,
        "num_dense_layers": dense,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "moe_num_experts": experts.count,
        "moe_k": experts.per_token,
        "moe_num_shared_experts": experts.shared_ffn // experts.ffn,
        "moe_layer_start_index": dense,
        "moe_layer_interval": 1,
        "moe_layer_end_index": None,
        "moe_gate_act": "softmax",
        "use_expert_bias": experts.router.bias,
    }


def model_fields(config: ModelConfig, adapter: Adapter) -> dict[str, Any]:
    """Fields of config.json for mlx-lm, as both backends read them: its defaults differ from transformers'.

    Positions, attention windows and Granite's multipliers are applied by our replacements, so these fields are neutral.
    """
    experts = config.experts
    kinds = [
        "sliding_attention" if layer.window else adapter.mixer if layer.recurrent else adapter.attention_type
        for layer in config.plan
    ]
    mixture = (
        {}
        if experts is None
        else {
            "num_experts": experts.count,
            "num_local_experts": experts.count,
            "num_experts_per_tok": experts.per_token,
            "moe_intermediate_size": experts.ffn,
            "shared_expert_intermediate_size": experts.shared_ffn,
            "shared_intermediate_size": experts.shared_ffn,
            "norm_topk_prob": experts.normalize,
            **_router_config(config, experts),
            "decoder_sparse_step": 1,
            "mlp_only_layers": [number for number, layer in enumerate(config.plan) if not layer.experts],
        }
    )
    return (
        mixture
        | _hybrid_config(config)
        | _latent_config(config)
        | {
            "hidden_size": config.hidden_size,
            "intermediate_size": config.ffn,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads,
            "vocab_size": config.vocab_size,
            "num_key_value_heads": config.kv_heads,
            "head_dim": config.head_dim,
            "rms_norm_eps": config.rms_eps,
            "norm_epsilon": config.rms_eps,
            "layer_norm_eps": config.rms_eps,
            "norm_eps": config.rms_eps,
            "tie_word_embeddings": config.tie_embeddings,
            "attention_bias": config.qkv_bias,
            "max_position_embeddings": config.max_positions,
            "rope_theta": config.ropes[0].theta,
            "rope_scaling": None,
            "rope_parameters": None,
            "rope_traditional": False,
            "partial_rotary_factor": 1.0,
            "no_rope_layers": None,
            "layer_types": kinds if adapter.layer_types else None,
            "sliding_window": None,
            "sliding_window_pattern": adapter.window_pattern,
            "query_pre_attn_scalar": config.attention_scale**-2,
            "attn_logit_softcapping": config.attention_cap,
            "final_logit_softcapping": config.logit_cap,
            "attention_multiplier": config.attention_scale,
            "embedding_multiplier": 1.0,
            "residual_multiplier": 1.0,
            "logits_scaling": 1.0,
            "mlp_bias": config.mlp_bias,
            "use_bias": config.qkv_bias,
            "use_qkv_bias": config.qkv_bias,
            "use_parallel_residual": config.parallel,
            "qk_layernorm": config.head_norm is not None,
            "use_qk_norm": config.head_norm is not None,
            "layer_norm_bias": config.norm_biases,
            "rotary_pct": 1.0,
            "rotary_emb_base": config.ropes[0].theta,
        }
    )
