"""Families with a mixture of experts, most of them with an expert that computes every row."""

from collections.abc import Mapping
from dataclasses import replace

from workers.checkpoints.architectures.family import Family, every_other_before_max_window_layers
from workers.checkpoints.architectures.fields import Fields
from workers.checkpoints.architectures.hybrid_families import attention_every_few
from workers.checkpoints.architectures.parts import QWEN_MTP, ExpertNames, Names

EXPERTS = frozenset({"num_experts", "num_local_experts"})
MULTIPLIERS = frozenset({"embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"})
SHARED_WIDTH = "shared_expert_intermediate_size"
GRANITE_NAMES = Names(
    experts=ExpertNames(
        "block_sparse_moe.router.layer",
        "block_sparse_moe.experts.{}.w1",
        "block_sparse_moe.experts.{}.w3",
        "block_sparse_moe.experts.{}.w2",
        ("shared_mlp.input_linear",),
        "shared_mlp.output_linear",
    )
)
"""Checkpoints stack the experts; `workers.checkpoints.expert_stacks` has the names of the stacks."""


def stated_biases(family: Family, fields: Fields) -> Family:
    """Qwen2-MoE: `qkv_bias` decides."""
    return replace(family, biases=fields.flag("qkv_bias", True))


def shared_width(fields: Fields) -> int:
    """Return the width of the shared expert for the MLP, which Qwen3.5-MoE has in no layer."""
    return fields.integer("intermediate_size", fields.integer(SHARED_WIDTH))


QWEN3_5 = Family(
    "Qwen3_5MoeForCausalLM",
    biases=None,
    norm_offset=1.0,
    head_norm="each",
    mixers={"full_attention": "attention", "linear_attention": "gated_delta"},
    mixer_rule=attention_every_few,
    attention_gate=True,
    partial_rope=True,
    rope_sections=True,
    other_tensors=("mtp.",),
    mtp=QWEN_MTP,
    experts=True,
    expert_ffn="moe_intermediate_size",
    shared_ffn=SHARED_WIDTH,
    shared_gate=True,
    reads=EXPERTS,
    read_ffn=shared_width,
    defaults={
        "num_key_value_heads": 2,
        "head_dim": 256,
        "partial_rotary_factor": 0.25,
        "max_position_embeddings": 32768,
        "moe_intermediate_size": 512,
        SHARED_WIDTH: 512,
        "num_experts_per_tok": 8,
    },
)
GRANITE = Family(
    "GraniteMoeForCausalLM",
    names=GRANITE_NAMES,
    biases=None,
    experts=True,
    reads=EXPERTS | MULTIPLIERS,
    defaults={"attention_multiplier": 1.0, "num_experts_per_tok": 2},
)
MIXTURES: Mapping[str, Family] = {
    "qwen2_moe": Family(
        "Qwen2MoeForCausalLM",
        biases=True,
        windowed=every_other_before_max_window_layers,
        window_switch=True,
        experts=True,
        expert_ffn="moe_intermediate_size",
        normalizes_experts=None,
        shared_ffn=SHARED_WIDTH,
        shared_gate=True,
        reads=EXPERTS,
        variant=stated_biases,
        defaults={
            "sliding_window": 4096,
            "max_window_layers": 28,
            "max_position_embeddings": 32768,
            "num_key_value_heads": 16,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            SHARED_WIDTH: 5632,
        },
    ),
    "olmoe": Family(
        "OlmoeForCausalLM",
        biases=None,
        head_norm="all",
        experts=True,
        normalizes_experts=None,
        reads=EXPERTS,
        defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "num_experts_per_tok": 8},
    ),
    "granitemoe": GRANITE,
    "granitemoeshared": replace(
        GRANITE,
        architecture="GraniteMoeSharedForCausalLM",
        shared_ffn="shared_intermediate_size",
        defaults=dict(GRANITE.defaults) | {"shared_intermediate_size": 0},
    ),
    "qwen3_5_moe_text": QWEN3_5,
    "qwen3_next": replace(
        QWEN3_5,
        architecture="Qwen3NextForCausalLM",
        names=Names(delta_in=("linear_attn.in_proj_qkvz",), delta_gates=("linear_attn.in_proj_ba",)),
        rope_sections=False,
        normalizes_experts=None,
        read_ffn=None,
        defaults=dict(QWEN3_5.defaults) | {"num_experts_per_tok": 10, "norm_topk_prob": True},
    ),
}
"""The families by `model_type` of config.json."""
