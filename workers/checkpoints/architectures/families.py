"""The families of models, one entry each: what config.json does not state.

A field of config.json that changes the mathematics is either read by the family's entry or refused (`NEUTRAL`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from workers.checkpoints.architectures.fields import Fields
from workers.checkpoints.architectures.parts import (
    Activation,
    ExpertNames,
    HeadNorm,
    Names,
    NormKind,
    Norms,
    QkvLayout,
)

NEUTRAL: Mapping[str, float | list[int]] = {
    "attention_multiplier": 1,
    "attention_out_bias": 0,
    "attn_logit_softcapping": 0,
    "clip_qkv": 0,
    "embedding_multiplier": 1,
    "final_logit_softcapping": 0,
    "logit_scale": 1,
    "logits_scaling": 1,
    "mlp_bias": 0,
    "no_rope_layers": [],
    "num_experts": 0,
    "num_local_experts": 0,
    "num_shared_experts": 0,
    "query_pre_attn_scalar": 0,
    "residual_multiplier": 1,
    "rope_interleaved": 0,
    "rotary_pct": 1,
    "scale_emb": 1,
    "use_bidirectional_attention": 0,
    "use_mrope": 0,
    "use_qk_norm": 0,
    "qk_layernorm": 0,
    "alibi": 0,
}
"""Fields that change the model's mathematics, with the value (besides null and false) at which they do not."""

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu",
    "relu2": "relu2",
}
"""The activations by their names in config.json."""

Windowed = Callable[[Fields, int], tuple[bool, ...]]
"""A rule that says for each of a number of layers whether it has an attention window, unless config.json lists them."""

BEFORE = Norms(before_attention="input_layernorm", before_mlp="post_attention_layernorm")
AFTER = Norms(after_attention="post_attention_layernorm", after_mlp="post_feedforward_layernorm")
AROUND = Norms("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")


def all_layers(fields: Fields, layers: int) -> tuple[bool, ...]:
    return (True,) * layers


def from_max_window_layers(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Qwen's rule: the first `max_window_layers` have no window."""
    first = fields.get("max_window_layers", 0)
    if not isinstance(first, int) or first < 0:
        raise fields.error("max_window_layers", f"{first!r} is not a number of layers")
    return tuple(layer >= first for layer in range(layers))


def without_positions(fields: Fields, layers: int) -> tuple[bool, ...]:
    """SmolLM3's rule: layers without rotary positions have a window."""
    return tuple(not rotated for rotated in rotated_layers(fields, layers))


def but_every(period: int) -> Windowed:
    """Make the rule that all but every `period`-th layer have a window; Gemma 3 may state another period."""

    def windowed(fields: Fields, layers: int) -> tuple[bool, ...]:
        step = fields.integer("sliding_window_pattern", period)
        return tuple((layer + 1) % step != 0 for layer in range(layers))

    return windowed


def rotated_layers(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Read SmolLM3's `no_rope_layers`, in which 1 stands for a layer with rotary positions."""
    marks = fields.get("no_rope_layers")
    if marks is None:
        step = fields.integer("no_rope_layer_interval", 4)
        return tuple((layer + 1) % step != 0 for layer in range(layers))
    if not isinstance(marks, list) or len(marks) < layers or any(mark not in (0, 1) for mark in marks):
        raise fields.error("no_rope_layers", f"is not a list of 0 and 1 for {layers} layers")
    return tuple(mark == 1 for mark in marks[:layers])


@dataclass(frozen=True, slots=True)
class Family:
    """One family: how its models differ from Llama. The defaults of the fields describe Llama."""

    architecture: str
    """The class in transformers, which `architectures` of config.json names."""
    norms: Norms = BEFORE
    """The norms of a layer: where they are, and their names."""
    norm_offset: float = 0.0
    """Offset that is added to the weights of norms when they are read."""
    head_norm: HeadNorm | None = None
    """Normalization of queries and keys: of each head, or of all heads together."""
    names: Names = Names()  # noqa: RUF009 - frozen
    """The names of the matrices, where they are not Llama's."""
    biases: bool | None = False
    """Queries, keys and values have biases. None: `attention_bias` decides, for the output as well."""
    activation: str = "silu"
    """The activation, a key of `ACTIVATIONS`; config.json may not name another one."""
    activation_alias: str | None = None
    """Another name of the activation in early checkpoints of the family, whatever it means elsewhere."""
    scaled_embedding: bool = False
    """Embeddings are multiplied by the square root of their width."""
    windowed: Windowed | None = None
    """The rule for attention windows. None: the family has none, whatever its config.json states."""
    window_switch: bool = False
    """Windows are off unless `use_sliding_window` is true."""
    marks_rotated_layers: bool = False
    """Some layers have no rotary positions."""
    local_rope: str | None = None
    """The field with the RoPE base of windowed layers, where it is a different one."""
    partial_rope: bool = False
    """`partial_rotary_factor` may be below 1."""
    experts: bool = False
    """Layers have a mixture of experts in place of the MLP."""
    expert_ffn: str = "intermediate_size"
    """The field with the width of one expert."""
    normalizes_experts: bool | None = True
    """The weights of the chosen experts sum to one. None: `norm_topk_prob` decides."""
    mtp_heads: bool = False
    """Checkpoints may have heads for multi-token prediction, `num_nextn_predict_layers` of them."""
    reads: frozenset[str] = frozenset()
    """The fields of `NEUTRAL` that the family has."""
    field_names: Mapping[str, str] = field(default_factory=dict)
    """The names in config.json of fields that have another one in Llama's, by that name; `defaults` has those too."""
    norm_kind: NormKind = "rms"
    norm_weights: bool = True
    norm_biases: bool = False
    """Norms have weights, and biases, except those of queries and keys."""
    output_bias: bool | None = None
    """The output of attention has a bias. None: it has one where `attention_bias` decides, and no other."""
    gated: bool = True
    """The MLP multiplies act(gate) and up. Otherwise it has no gate, and `Names.gate_up` has one name."""
    mlp_biases: bool | None = False
    """The MLP has biases. None: `mlp_bias` decides."""
    any_activation: bool = False
    """config.json may name any of `ACTIVATIONS`; `activation` is the default."""
    parallel: bool = False
    """Attention and MLP read the same rows (`ModelConfig.parallel`)."""
    rotates_windowed: bool = False
    """In models with attention windows, layers without one have no rotary positions."""
    grows_queries: bool = False
    """Queries grow with the position by `llama_4_scaling_beta`, beyond the positions of the first training: contexts
    end there."""
    kv_heads: int | None = None
    """The number of KV heads, whatever config.json states."""
    ffn_factor: int | None = None
    """The width of the MLP, as a multiple of the hidden size, where config.json leaves it out."""
    interleaved_rope: bool = False
    """RoPE rotates pairs of neighbouring lanes."""
    qkv_layout: QkvLayout = "parts"
    """The order of the rows of queries, keys and values in one matrix."""
    head_bias: bool = False
    """Logits have a bias."""
    variant: Callable[["Family", Fields], "Family"] = lambda family, fields: family
    """Returns the family as fields of a config.json change it, which are read with the family's names and defaults."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of fields that config.json leaves out, as in transformers."""


EXPERTS = frozenset({"num_experts", "num_local_experts"})
MULTIPLIERS = frozenset({"embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"})
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

COHERE_DEFAULTS = {
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.0625,
    "tie_word_embeddings": True,
    "rope_theta": 500000.0,
    "max_position_embeddings": 8192,
}
GLM_DEFAULTS = {
    "rms_norm_eps": 1.5625e-7,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "partial_rotary_factor": 0.5,
    "attention_bias": True,
    "max_position_embeddings": 131072,
}
MINISTRAL3_POSITIONS = {
    "rope_type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
LAYER_NORM_EPS = {"rms_norm_eps": "layer_norm_eps"}
ONE_NORM = Norms(before_attention="input_layernorm")


def vary_gpt_neox(family: Family, fields: Fields) -> Family:
    heads = fields.integer("num_attention_heads")
    return replace(family, kv_heads=heads, parallel=fields.flag("use_parallel_residual", True))


def vary_stablelm(family: Family, fields: Fields) -> Family:
    """Parallel layers have one norm; heads may have norms."""
    parallel = fields.flag("use_parallel_residual", False)
    head_norm: HeadNorm | None = "own" if fields.flag("qk_layernorm", False) else None
    return replace(family, parallel=parallel, norms=ONE_NORM if parallel else BEFORE, head_norm=head_norm)


def vary_cohere(family: Family, fields: Fields) -> Family:
    return replace(family, head_norm="own" if fields.flag("use_qk_norm", False) else None)


def vary_cohere2(family: Family, fields: Fields) -> Family:
    if fields.get("sliding_window") is None:
        raise fields.error("sliding_window", "is missing: layers with positions are those with a window")
    return family


def vary_ministral3(family: Family, fields: Fields) -> Family:
    """Positions have a plan that transformers takes where config.json has none."""
    if fields.get("rope_parameters") is not None or fields.get("rope_scaling") is not None:
        return family
    return replace(family, defaults={**family.defaults, "rope_parameters": MINISTRAL3_POSITIONS})


def vary_falcon(family: Family, fields: Fields) -> Family:
    """Falcon 7B has one KV head and one norm; the newer architecture has groups of heads, and mostly two norms."""
    newer, parallel = fields.flag("new_decoder_architecture", False), fields.flag("parallel_attn", True)
    if newer:
        two = fields.integer("num_ln_in_parallel_attn", 2) == 2
        norms = Norms(before_attention="ln_attn", before_mlp="ln_mlp") if two else ONE_NORM
        names = {**family.field_names, "num_key_value_heads": "num_kv_heads"}
        return replace(family, parallel=True, norms=norms, qkv_layout="kv_heads", field_names=names)
    family = replace(family, parallel=parallel, norms=ONE_NORM if parallel else BEFORE)
    if fields.flag("multi_query", True):
        return replace(family, kv_heads=1)
    return replace(family, kv_heads=fields.integer("num_attention_heads"), qkv_layout="heads")


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
        mtp_heads=True,
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
        names=Names(
            experts=ExpertNames(
                "block_sparse_moe.gate",
                "block_sparse_moe.experts.{}.w1",
                "block_sparse_moe.experts.{}.w3",
                "block_sparse_moe.experts.{}.w2",
            )
        ),
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
    "starcoder2": Family(
        "Starcoder2ForCausalLM",
        norm_kind="layer",
        norm_biases=True,
        names=Names(gate_up=("mlp.c_fc",), down="mlp.c_proj"),
        biases=None,
        mlp_biases=None,
        gated=False,
        activation="gelu_pytorch_tanh",
        windowed=all_layers,
        reads=frozenset({"mlp_bias"}),
        field_names={"rms_norm_eps": "norm_epsilon", "attention_bias": "use_bias", "mlp_bias": "use_bias"},
        defaults={"norm_epsilon": 1e-5, "use_bias": True, "num_key_value_heads": 2, "tie_word_embeddings": True},
    ),
    "stablelm": Family(
        "StableLmForCausalLM",
        norm_kind="layer",
        norm_biases=True,
        names=Names(head_norms=("self_attn.q_layernorm.norms.{}", "self_attn.k_layernorm.norms.{}")),
        biases=None,
        output_bias=False,
        partial_rope=True,
        variant=vary_stablelm,
        reads=frozenset({"qk_layernorm"}),
        field_names=LAYER_NORM_EPS | {"attention_bias": "use_qkv_bias"},
        defaults={"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25},
    ),
    "gpt_neox": Family(
        "GPTNeoXForCausalLM",
        norm_kind="layer",
        norm_biases=True,
        names=Names(
            qkv=("attention.query_key_value",),
            o="attention.dense",
            gate_up=("mlp.dense_h_to_4h",),
            down="mlp.dense_4h_to_h",
            derived=("attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq"),
            embedding="gpt_neox.embed_in",
            layers="gpt_neox.layers.",
            norm="gpt_neox.final_layer_norm",
            head="embed_out",
        ),
        biases=None,
        mlp_biases=True,
        gated=False,
        activation="gelu",
        any_activation=True,
        partial_rope=True,
        qkv_layout="heads",
        variant=vary_gpt_neox,
        reads=frozenset({"rotary_pct"}),
        field_names=LAYER_NORM_EPS | {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
        defaults={
            "layer_norm_eps": 1e-5,
            "rotary_pct": 0.25,
            "attention_bias": True,
        },
    ),
    "cohere": Family(
        "CohereForCausalLM",
        norm_kind="layer",
        norms=ONE_NORM,
        parallel=True,
        biases=None,
        interleaved_rope=True,
        variant=vary_cohere,
        reads=frozenset({"logit_scale", "use_qk_norm"}),
        field_names=LAYER_NORM_EPS,
        defaults=COHERE_DEFAULTS,
    ),
    "cohere2": Family(
        "Cohere2ForCausalLM",
        norm_kind="layer",
        norms=ONE_NORM,
        parallel=True,
        biases=None,
        interleaved_rope=True,
        windowed=but_every(4),
        rotates_windowed=True,
        variant=vary_cohere2,
        reads=frozenset({"logit_scale"}),
        field_names=LAYER_NORM_EPS,
        defaults=COHERE_DEFAULTS | {"sliding_window": 4096, "rope_theta": 10000.0},
    ),
    "phi": Family(
        "PhiForCausalLM",
        norm_kind="layer",
        norm_biases=True,
        norms=ONE_NORM,
        parallel=True,
        names=Names(gate_up=("mlp.fc1",), down="mlp.fc2", o="self_attn.dense", norm="model.final_layernorm"),
        biases=True,
        output_bias=True,
        mlp_biases=True,
        head_bias=True,
        gated=False,
        activation="gelu_new",
        partial_rope=True,
        field_names=LAYER_NORM_EPS,
        defaults={"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5},
    ),
    "falcon": Family(
        "FalconForCausalLM",
        norm_kind="layer",
        norm_biases=True,
        names=Names(
            qkv=("self_attention.query_key_value",),
            o="self_attention.dense",
            gate_up=("mlp.dense_h_to_4h",),
            down="mlp.dense_4h_to_h",
            embedding="transformer.word_embeddings",
            layers="transformer.h.",
            norm="transformer.ln_f",
            derived=("self_attention.rotary_emb.inv_freq",),
        ),
        biases=None,
        mlp_biases=None,
        gated=False,
        activation="gelu",
        ffn_factor=4,
        variant=vary_falcon,
        reads=frozenset({"mlp_bias"}),
        field_names={
            "rms_norm_eps": "layer_norm_epsilon",
            "attention_bias": "bias",
            "mlp_bias": "bias",
            "hidden_act": "activation",
            "intermediate_size": "ffn_hidden_size",
        },
        defaults={"layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
    ),
    "exaone4": Family(
        "Exaone4ForCausalLM",
        norms=AFTER,
        head_norm="each",
        windowed=but_every(4),
        rotates_windowed=True,
        defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096, "num_key_value_heads": 32},
    ),
    "nemotron": Family(
        "NemotronForCausalLM",
        norm_kind="layer",
        norm_biases=True,
        norm_offset=1.0,
        names=Names(gate_up=("mlp.up_proj",)),
        biases=None,
        mlp_biases=None,
        gated=False,
        activation="relu2",
        partial_rope=True,
        reads=frozenset({"mlp_bias"}),
        field_names={"rms_norm_eps": "norm_eps"},
        defaults={"norm_eps": 1e-5, "partial_rotary_factor": 0.5},
    ),
    "olmo": Family(
        "OlmoForCausalLM",
        norm_kind="layer",
        norm_weights=False,
        biases=None,
        reads=frozenset({"clip_qkv"}),
        defaults={"rms_norm_eps": 1e-5},
    ),
    "arcee": Family(
        "ArceeForCausalLM",
        names=Names(gate_up=("mlp.up_proj",)),
        biases=None,
        mlp_biases=None,
        gated=False,
        activation="relu2",
        reads=frozenset({"mlp_bias"}),
        defaults={"rms_norm_eps": 1e-5},
    ),
    "helium": Family(
        "HeliumForCausalLM",
        biases=None,
        output_bias=False,
        mlp_biases=None,
        interleaved_rope=True,
        reads=frozenset({"mlp_bias"}),
        defaults={"rms_norm_eps": 1e-8, "rope_theta": 100000.0, "head_dim": 128, "num_key_value_heads": 20},
    ),
    "ernie4_5": Family(
        "Ernie4_5ForCausalLM",
        biases=None,
        mlp_biases=None,
        interleaved_rope=True,
        reads=frozenset({"mlp_bias"}),
        field_names={"attention_bias": "use_bias", "mlp_bias": "use_bias"},
        defaults={
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "head_dim": 128,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
    ),
    "ministral": Family(
        "MinistralForCausalLM", windowed=all_layers, defaults={"sliding_window": 4096, "num_key_value_heads": 8}
    ),
    "ministral3": Family(
        "Ministral3ForCausalLM",
        windowed=all_layers,
        grows_queries=True,
        variant=vary_ministral3,
        defaults={"rms_norm_eps": 1e-5, "head_dim": 128, "num_key_value_heads": 8, "max_position_embeddings": 262144},
    ),
    "glm": Family(
        "GlmForCausalLM",
        names=Names(gate_up=("mlp.gate_up_proj",)),
        biases=None,
        output_bias=False,
        interleaved_rope=True,
        partial_rope=True,
        defaults=GLM_DEFAULTS,
    ),
    "glm4": Family(
        "Glm4ForCausalLM",
        norms=Norms(
            before_attention="input_layernorm",
            after_attention="post_self_attn_layernorm",
            before_mlp="post_attention_layernorm",
            after_mlp="post_mlp_layernorm",
        ),
        names=Names(gate_up=("mlp.gate_up_proj",)),
        biases=None,
        output_bias=False,
        interleaved_rope=True,
        partial_rope=True,
        defaults=GLM_DEFAULTS,
    ),
}
"""The families by `model_type` of config.json."""
