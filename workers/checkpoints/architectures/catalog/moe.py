"""Families with a mixture of experts, most of them with an expert that computes every row."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from workers.checkpoints.architectures.catalog.hybrid import HYBRIDS
from workers.checkpoints.architectures.family import Family, all_layers, every_other_before_max_window_layers
from workers.checkpoints.architectures.fields import MAX_PARTS, Fields
from workers.checkpoints.architectures.parts import ExpertNames, ExpertRouter, HeadNorm, Names

EXPERTS = frozenset({"num_experts", "num_local_experts"})
ROUTED = EXPERTS | {"n_routed_experts", "routed_scaling_factor"}
MULTIPLIERS = frozenset({"embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"})
SHARED_WIDTH = "shared_expert_intermediate_size"
MIXTRAL_EXPERTS = ExpertNames(
    "block_sparse_moe.gate",
    "block_sparse_moe.experts.{}.w1",
    "block_sparse_moe.experts.{}.w3",
    "block_sparse_moe.experts.{}.w2",
)
LFM2_EXPERTS = ExpertNames(
    "feed_forward.gate",
    "feed_forward.experts.{}.w1",
    "feed_forward.experts.{}.w3",
    "feed_forward.experts.{}.w2",
    router_bias="feed_forward.expert_bias",
)
SHARED_EXPERTS = replace(
    Names().experts,
    shared_gate_up=("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
    shared_down="mlp.shared_experts.down_proj",
)
"""Names where shared experts are counted."""
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
GRANITE_APART = replace(
    GRANITE_NAMES,
    experts=replace(GRANITE_NAMES.experts, shared_gate_up=("shared_mlp.gate_proj", "shared_mlp.up_proj")),
)
"""GGUF files have the matrices of the shared expert apart."""


def granite_shared(family: Family, fields: Fields) -> Family:
    """GraniteMoeShared: a file of GGUF has another layout of the shared expert."""
    return family if fields.file.name == "config.json" else replace(family, names=GRANITE_APART)


def stated_biases(family: Family, fields: Fields) -> Family:
    """Qwen2-MoE: `qkv_bias` decides."""
    return replace(family, biases=fields.flag("qkv_bias", True))


def shared_width(fields: Fields) -> int:
    """Return the width of the shared expert for the MLP, which Qwen3.5-MoE has in no layer."""
    return fields.integer("intermediate_size", fields.integer(SHARED_WIDTH))


def sigmoid_router(fields: Fields) -> ExpertRouter:
    """DeepSeek-V3's router, which GLM-4.5 has as well: sigmoids, and a bias for the choice, from the best groups."""
    if (score := fields.get("scoring_func", "sigmoid")) != "sigmoid":
        raise fields.error("scoring_func", f"{score!r} is not supported, only 'sigmoid'")
    return ExpertRouter(
        "sigmoid",
        bias=True,
        groups=fields.integer("n_group", 1, most=MAX_PARTS),
        kept_groups=fields.integer("topk_group", 1, most=MAX_PARTS),
        scale=fields.number("routed_scaling_factor", 1.0),
        sum_offset=1e-20,
    )


def ernie_router(fields: Fields) -> ExpertRouter:
    """ERNIE 4.5's router: a softmax, with a bias for the choice."""
    if (score := fields.get("moe_gate_act", "softmax")) != "softmax":
        raise fields.error("moe_gate_act", f"{score!r} is not supported, only 'softmax'")
    return ExpertRouter(bias=fields.flag("moe_use_aux_free", True), least_sum=fields.number("moe_norm_min", 1e-12))


def phi_router(fields: Fields) -> ExpertRouter:
    """Phi-3.5-MoE's router, which chooses two experts."""
    if (chosen := fields.get("num_experts_per_tok")) != 2:
        raise fields.error("num_experts_per_tok", f"{chosen!r} is not supported, only 2")
    return ExpertRouter("sparsemixer", jitter=fields.number("router_jitter_noise", 0.01))


def lfm2_router(fields: Fields) -> ExpertRouter:
    """LFM2's router: sigmoids, and a bias for the choice."""
    scale = fields.number("routed_scaling_factor", 1.0)
    return ExpertRouter("sigmoid", bias=fields.flag("use_expert_bias", True), scale=scale, sum_offset=1e-6)


def after_dense(name: str, default: int) -> Callable[[Fields, int], tuple[bool, ...]]:
    """Make the rule that all layers but the first have experts; a field has the number of those."""

    def sparse(fields: Fields, layers: int) -> tuple[bool, ...]:
        first = fields.get(name, default)
        if type(first) is not int or first < 0:
            raise fields.error(name, f"{first!r} is not a number of layers")
        return tuple(layer >= first for layer in range(layers))

    return sparse


def every_few_of_range(fields: Fields, layers: int) -> tuple[bool, ...]:
    """ERNIE's rule: every few layers have experts, from a first to a last one; -1 is the last of the model."""
    step = fields.integer("moe_layer_interval", 1)
    first, last = fields.get("moe_layer_start_index", 1), fields.get("moe_layer_end_index", -1)
    for name, value in (("moe_layer_start_index", first), ("moe_layer_end_index", last)):
        if type(value) is not int or value < -1:
            raise fields.error(name, f"{value!r} is not the number of a layer")
    end = layers - 1 if last == -1 else last
    return tuple((layer + 1) % step == 0 and first <= layer <= end for layer in range(layers))


def layers_behind(fields: Fields) -> tuple[str, ...]:
    """Return the prefixes of the tensors of heads for multi-token prediction that are layers behind the last one."""
    layers, heads = fields.integer("num_hidden_layers", most=MAX_PARTS), fields.get("num_nextn_predict_layers", 0)
    if type(heads) is not int or not 0 <= heads <= MAX_PARTS:
        raise fields.error("num_nextn_predict_layers", f"{heads!r} is not a number of layers")
    return tuple(f"model.layers.{layers + head}." for head in range(heads))


def vary_glm4_moe(family: Family, fields: Fields) -> Family:
    """GLM-4.5: `use_qk_norm` decides on norms of heads."""
    head_norm: HeadNorm | None = "each" if fields.flag("use_qk_norm", False) else None
    return replace(family, head_norm=head_norm, other_tensors=layers_behind(fields))


def vary_phimoe(family: Family, fields: Fields) -> Family:
    """Phi-3.5-MoE: `lm_head_bias` decides, and a window of all positions is none."""
    all_seen = (fields.get("sliding_window") or 0) == fields.integer("max_position_embeddings")
    windowed = None if all_seen else family.windowed
    return replace(family, head_bias=fields.flag("lm_head_bias", False), windowed=windowed)


QWEN3_5 = replace(
    HYBRIDS["qwen3_5_text"],
    architecture="Qwen3_5MoeForCausalLM",
    experts=True,
    expert_ffn="moe_intermediate_size",
    shared_ffn=SHARED_WIDTH,
    shared_gate=True,
    reads=EXPERTS,
    read_ffn=shared_width,
    defaults=dict(HYBRIDS["qwen3_5_text"].defaults)
    | {
        "num_key_value_heads": 2,
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
    "glm4_moe": Family(
        "Glm4MoeForCausalLM",
        names=Names(experts=SHARED_EXPERTS),
        biases=None,
        output_bias=False,
        partial_rope=True,
        experts=True,
        expert_ffn="moe_intermediate_size",
        normalizes_experts=None,
        shared_count="n_shared_experts",
        read_router=sigmoid_router,
        layers_with_experts=after_dense("first_k_dense_replace", 1),
        reads=ROUTED | {"n_shared_experts", "use_qk_norm"},
        field_names={"num_experts": "n_routed_experts"},
        variant=vary_glm4_moe,
        defaults={
            "num_nextn_predict_layers": 1,
            "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 0.5,
            "max_position_embeddings": 131072,
            "num_key_value_heads": 8,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1408,
            "norm_topk_prob": True,
            "n_shared_experts": 1,
        },
    ),
    "ernie4_5_moe": Family(
        "Ernie4_5_MoeForCausalLM",
        names=Names(
            experts=replace(SHARED_EXPERTS, router_bias="mlp.moe_statics.e_score_correction_bias", router_bias_row=True)
        ),
        interleaved_rope=True,
        experts=True,
        expert_ffn="moe_intermediate_size",
        shared_count="moe_num_shared_experts",
        read_router=ernie_router,
        layers_with_experts=every_few_of_range,
        reads=ROUTED | {"moe_num_experts", "moe_num_shared_experts"},
        field_names={
            "attention_bias": "use_bias",
            "num_experts": "moe_num_experts",
            "num_experts_per_tok": "moe_k",
        },
        other_tensors=("model.mtp_",),
        defaults={
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "max_position_embeddings": 131072,
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "moe_k": 6,
            "moe_intermediate_size": 1536,
            "moe_num_shared_experts": 2,
        },
    ),
    "phimoe": Family(
        "PhimoeForCausalLM",
        earlier_architecture="PhiMoEForCausalLM",
        names=Names(experts=MIXTRAL_EXPERTS),
        biases=None,
        windowed=all_layers,
        norm_kind="layer",
        norm_biases=True,
        experts=True,
        read_router=phi_router,
        reads=EXPERTS | {"lm_head_bias"},
        variant=vary_phimoe,
        defaults={
            "rms_norm_eps": 1e-5,
            "rope_theta": 1000000.0,
            "max_position_embeddings": 131072,
            "num_key_value_heads": 8,
            "num_experts_per_tok": 2,
        },
    ),
    "lfm2_moe": replace(
        HYBRIDS["lfm2"],
        architecture="Lfm2MoeForCausalLM",
        names=replace(HYBRIDS["lfm2"].names, experts=LFM2_EXPERTS),
        experts=True,
        expert_ffn="moe_intermediate_size",
        normalizes_experts=None,
        read_router=lfm2_router,
        layers_with_experts=after_dense("num_dense_layers", 2),
        read_ffn=None,
        reads=ROUTED,
        defaults=dict(HYBRIDS["lfm2"].defaults)
        | {"num_experts_per_tok": 4, "moe_intermediate_size": 1792, "norm_topk_prob": True},
    ),
    "granitemoe": GRANITE,
    "granitemoeshared": replace(
        GRANITE,
        architecture="GraniteMoeSharedForCausalLM",
        shared_ffn="shared_intermediate_size",
        variant=granite_shared,
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
