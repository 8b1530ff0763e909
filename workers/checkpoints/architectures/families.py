"""The families of models, one entry each."""

from collections.abc import Mapping

from workers.checkpoints.architectures.catalog.dense import DENSE
from workers.checkpoints.architectures.catalog.gemma4 import GEMMAS
from workers.checkpoints.architectures.catalog.gpt_oss import GPT_OSS
from workers.checkpoints.architectures.catalog.hybrid import HYBRIDS
from workers.checkpoints.architectures.catalog.latent import LATENT
from workers.checkpoints.architectures.catalog.mamba import MAMBAS
from workers.checkpoints.architectures.catalog.moe import EXPERTS, MIXTRAL_EXPERTS, MIXTURES, MULTIPLIERS
from workers.checkpoints.architectures.family import (
    AFTER,
    AROUND,
    Family,
    all_layers,
    but_every,
    from_max_window_layers,
    without_positions,
)
from workers.checkpoints.architectures.parts import MTP_NAMES, Names

GEMMA = frozenset({"final_logit_softcapping", "query_pre_attn_scalar"})
GEMMA_DEFAULTS = {
    "tie_word_embeddings": True,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
QWEN_DEFAULTS = {"sliding_window": 4096, "max_window_layers": 28}

FAMILIES: Mapping[str, Family] = {
    "llama": Family("LlamaForCausalLM", biases=None),
    "mistral": Family(
        "MistralForCausalLM", windowed=all_layers, defaults={"sliding_window": 4096, "num_key_value_heads": 8}
    ),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        biases=True,
        windowed=from_max_window_layers,
        window_switch=True,
        defaults=QWEN_DEFAULTS,
    ),
    "mimo": Family(
        "MiMoForCausalLM",
        biases=True,
        windowed=from_max_window_layers,
        window_switch=True,
        mtp=MTP_NAMES,
        defaults=QWEN_DEFAULTS,
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        biases=None,
        head_norm="each",
        windowed=from_max_window_layers,
        window_switch=True,
        defaults=QWEN_DEFAULTS | {"head_dim": 128},
    ),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        biases=None,
        windowed=without_positions,
        window_switch=True,
        marks_rotated_layers=True,
        reads=frozenset({"no_rope_layers"}),
        defaults={"rope_theta": 2000000.0, "tie_word_embeddings": True, "num_key_value_heads": 4},
    ),
    "olmo2": Family("Olmo2ForCausalLM", biases=None, norms=AFTER, head_norm="all", defaults={"rms_norm_eps": 1e-5}),
    "olmo3": Family(
        "Olmo3ForCausalLM",
        biases=None,
        norms=AFTER,
        head_norm="all",
        windowed=but_every(4),
        local_rope="rope_theta",
        defaults={"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "sliding_window": 4096},
    ),
    "seed_oss": Family("SeedOssForCausalLM", biases=True, defaults={"head_dim": 128, "num_key_value_heads": 8}),
    "phi3": Family(
        "Phi3ForCausalLM",
        names=Names(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",)),
        windowed=all_layers,
        partial_rope=True,
        defaults={"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
    ),
    "gemma": Family(
        "GemmaForCausalLM",
        biases=None,
        norm_offset=1.0,
        activation="gelu_pytorch_tanh",
        activation_alias="gelu",
        scaled_embedding=True,
        defaults={"tie_word_embeddings": True, "head_dim": 256, "num_key_value_heads": 16},
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        biases=None,
        norms=AROUND,
        norm_offset=1.0,
        activation="gelu_pytorch_tanh",
        scaled_embedding=True,
        windowed=but_every(2),
        reads=GEMMA | {"attn_logit_softcapping"},
        defaults=GEMMA_DEFAULTS | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    ),
    "gemma3_text": Family(
        "Gemma3ForCausalLM",
        biases=None,
        norms=AROUND,
        norm_offset=1.0,
        head_norm="each",
        activation="gelu_pytorch_tanh",
        scaled_embedding=True,
        windowed=but_every(6),
        local_rope="rope_local_base_freq",
        reads=GEMMA,
        defaults=GEMMA_DEFAULTS
        | {
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
            "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0,
        },
    ),
    "granite": Family(
        "GraniteForCausalLM",
        biases=None,
        reads=MULTIPLIERS,
        defaults={"attention_multiplier": 1.0},
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM",
        biases=None,
        head_norm="each",
        windowed=all_layers,
        window_switch=True,
        experts=True,
        expert_ffn="moe_intermediate_size",
        normalizes_experts=None,
        reads=EXPERTS,
        defaults={
            "sliding_window": 4096,
            "num_key_value_heads": 4,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
        },
    ),
    "mixtral": Family(
        "MixtralForCausalLM",
        names=Names(experts=MIXTRAL_EXPERTS),
        windowed=all_layers,
        experts=True,
        reads=EXPERTS,
        defaults={
            "rms_norm_eps": 1e-5,
            "rope_theta": 1000000.0,
            "num_key_value_heads": 8,
            "num_experts_per_tok": 2,
        },
    ),
    **MIXTURES,
    **GPT_OSS,
    **DENSE,
    **HYBRIDS,
    **MAMBAS,
    **LATENT,
    **GEMMAS,
}
"""The families by `model_type` of config.json."""
