"""Families whose layers have Llama's matrices or nearly those, and the two mixtures that came first."""

from collections.abc import Mapping
from typing import Any

from tests.families.mlps import mixtral_experts, qwen_experts
from tests.families.traits import WINDOW, Traits
from tests.reference.layers import gemma4_layers

AFTER = ("post_attention_layernorm", "post_feedforward_layernorm")
AROUND = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
MULTIPLIED = {
    "embedding_multiplier": 1.7,
    "attention_multiplier": 0.4,
    "residual_multiplier": 0.6,
    "logits_scaling": 0.7,
}
GELU = {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"}
WINDOWED_GEMMA = GELU | {"query_pre_attn_scalar": 24, "sliding_window": WINDOW}
"""Fields that Gemma 2 and 3 share."""


def _olmo3_fields(layers: int) -> dict[str, Any]:
    kinds = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)]
    # transformers gives windowed layers this base whatever the older field says, so it cannot be another one.
    return {"sliding_window": WINDOW, "rope_theta": 500000.0, "layer_types": kinds}


PLAIN_FAMILIES: Mapping[str, Traits] = {
    "llama": Traits("LlamaForCausalLM", lambda layers: {"mlp_bias": False}),
    "qwen2": Traits(
        "Qwen2ForCausalLM",
        lambda layers: {"use_sliding_window": False, "sliding_window": None, "max_window_layers": layers},
        optional_bias=False,
        qkv_bias=True,
    ),
    "mimo": Traits(
        "MiMoForCausalLM",
        lambda layers: {
            "attention_bias": True,
            "num_nextn_predict_layers": 1,
            "use_sliding_window": False,
            "sliding_window": None,
            "max_window_layers": layers,
        },
        optional_bias=False,
        qkv_bias=True,
        mtp=True,
        served_as="qwen2",
    ),
    "qwen3": Traits(
        "Qwen3ForCausalLM",
        lambda layers: {"use_sliding_window": False, "sliding_window": None, "max_window_layers": layers},
        head_norm="each",
    ),
    "mistral": Traits("MistralForCausalLM", lambda layers: {"sliding_window": None}, optional_bias=False),
    "smollm3": Traits(
        "SmolLM3ForCausalLM",
        lambda layers: {"no_rope_layers": [int((layer + 1) % 2 != 0) for layer in range(layers)]},
    ),
    "olmo2": Traits("Olmo2ForCausalLM", norms=AFTER, head_norm="all"),
    "olmo3": Traits("Olmo3ForCausalLM", _olmo3_fields, norms=AFTER, head_norm="all"),
    "seed_oss": Traits(
        "SeedOssForCausalLM",
        lambda layers: {"attention_bias": True, "attention_out_bias": False, "mlp_bias": False},
        optional_bias=False,
        qkv_bias=True,
    ),
    "phi3": Traits(
        "Phi3ForCausalLM",
        lambda layers: {"sliding_window": None, "original_max_position_embeddings": 64},
        optional_bias=False,
        fused=True,
    ),
    "gemma": Traits("GemmaForCausalLM", lambda layers: GELU, centred_norms=True),
    "gemma2": Traits(
        "Gemma2ForCausalLM",
        lambda layers: WINDOWED_GEMMA | {"attn_logit_softcapping": 4.0, "final_logit_softcapping": 6.0},
        norms=AROUND,
        centred_norms=True,
    ),
    "gemma3_text": Traits(
        "Gemma3ForCausalLM",
        lambda layers: WINDOWED_GEMMA | {"sliding_window_pattern": 2, "rope_local_base_freq": 100.0},
        norms=AROUND,
        centred_norms=True,
        head_norm="each",
    ),
    "gemma4_text": Traits(
        "Gemma4ForCausalLM",
        gemma4_layers.fields,
        optional_bias=False,
        layer=gemma4_layers.layer,
        beside=gemma4_layers.beside_layers,
        without=("rope_theta",),
    ),
    "gemma4_unified_text": Traits(
        "Gemma4UnifiedForCausalLM",
        lambda layers: dict(gemma4_layers.fields(layers)) | {"hidden_size_per_layer_input": 0},
        optional_bias=False,
        layer=gemma4_layers.layer,
        without=("rope_theta",),
    ),
    "granite": Traits(
        "GraniteForCausalLM",
        lambda layers: MULTIPLIED | {"mlp_bias": False},
    ),
    "qwen3_moe": Traits(
        "Qwen3MoeForCausalLM",
        lambda layers: {
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "norm_topk_prob": False,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "use_sliding_window": False,
        },
        head_norm="each",
        mlp=qwen_experts,
    ),
    "mixtral": Traits(
        "MixtralForCausalLM",
        lambda layers: {"sliding_window": None, "num_local_experts": 4, "num_experts_per_tok": 2},
        optional_bias=False,
        mlp=mixtral_experts,
    ),
}
"""By config.json's `model_type`."""
