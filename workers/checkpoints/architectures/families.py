"""The families of models, one entry each: what config.json does not state.

A field of config.json that changes the mathematics is either read by the family's entry or refused (`NEUTRAL`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workers.checkpoints.architectures.fields import Fields
from workers.checkpoints.architectures.parts import Activation, ExpertNames, HeadNorm, MixerKind, Names, Norms

NEUTRAL: Mapping[str, float | list[int]] = {
    "attention_multiplier": 1,
    "attention_out_bias": 0,
    "attn_logit_softcapping": 0,
    "clip_qkv": 0,
    "conv_bias": 0,
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
}
"""Fields that change the model's mathematics, with the value (besides null and false) at which they do not."""

ACTIVATIONS: Mapping[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
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


def attention_where_listed(fields: Fields, layers: int) -> list[str]:
    """LFM2's rule: layers attend that `full_attn_idxs` lists, or all."""
    listed = fields.get("full_attn_idxs", list(range(layers)))
    if not isinstance(listed, list) or any(type(each) is not int or not 0 <= each < layers for each in listed):
        raise fields.error("full_attn_idxs", f"is not a list of layers below {layers}")
    return ["full_attention" if layer in listed else "conv" for layer in range(layers)]


def attention_every_few(fields: Fields, layers: int) -> list[str]:
    """Qwen's rule: every `full_attention_interval`-th layer attends."""
    step = fields.integer("full_attention_interval", 4)
    return ["linear_attention" if (layer + 1) % step else "full_attention" for layer in range(layers)]


def adjusted_ffn(fields: Fields) -> int:
    """LFM2's width of the MLP: two thirds of the stated one, times a factor, in whole multiples, unless that is
    switched off."""
    stated = fields.integer("intermediate_size")
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return stated
    multiple = fields.integer("block_multiple_of", 256)
    scaled = int(fields.number("block_ffn_dim_multiplier", 1.0) * int(2 * stated / 3))
    return -(-scaled // multiple) * multiple


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
    rope_sections: bool = False
    """The family is multimodal, with positions in sections, which are the same for text."""
    experts: bool = False
    """Layers have a mixture of experts in place of the MLP."""
    expert_ffn: str = "intermediate_size"
    """The field with the width of one expert."""
    normalizes_experts: bool | None = True
    """The weights of the chosen experts sum to one. None: `norm_topk_prob` decides."""
    mtp_heads: bool = False
    """Checkpoints may have heads for multi-token prediction, `num_nextn_predict_layers` of them."""
    mixers: Mapping[str, MixerKind] = field(default_factory=dict)
    """How layers mix rows, by their names in `layer_types`; empty: by attention in every layer."""
    mixer_rule: Callable[[Fields, int], list[str]] | None = None
    """The rule for `layer_types` where config.json leaves it out."""
    attention_gate: bool = False
    """Attention's output is multiplied by the sigmoid of a gate, which is projected beside the queries of each head."""
    read_ffn: Callable[[Fields], int] | None = None
    """The rule for the width of the MLP. None: `intermediate_size`."""
    other_tensors: tuple[str, ...] = ()
    """Prefixes of tensors that checkpoints may have and that the model's logits do not depend on."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names of fields in the family's config.json, by the usual names."""
    reads: frozenset[str] = frozenset()
    """The fields of `NEUTRAL` that the family has."""
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
    "lfm2": Family(
        "Lfm2ForCausalLM",
        norms=Norms(before_attention="operator_norm", before_mlp="ffn_norm"),
        head_norm="each",
        names=Names(
            gate_up=("feed_forward.w1", "feed_forward.w3"),
            down="feed_forward.w2",
            o="self_attn.out_proj",
            head_norms=("self_attn.q_layernorm", "self_attn.k_layernorm"),
            norm="model.embedding_norm",
        ),
        mixers={"full_attention": "attention", "conv": "convolution"},
        mixer_rule=attention_where_listed,
        read_ffn=adjusted_ffn,
        aliases={
            "intermediate_size": "block_ff_dim",
            "rms_norm_eps": "norm_eps",
            "tie_word_embeddings": "tie_embedding",
        },
        defaults={
            "rms_norm_eps": 1e-5,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": True,
            "num_key_value_heads": 8,
            "max_position_embeddings": 128000,
        },
    ),
    "qwen3_5_text": Family(
        "Qwen3_5ForCausalLM",
        biases=None,
        norm_offset=1.0,
        head_norm="each",
        mixers={"full_attention": "attention", "linear_attention": "gated_delta"},
        mixer_rule=attention_every_few,
        attention_gate=True,
        partial_rope=True,
        rope_sections=True,
        other_tensors=("mtp.",),
        defaults={
            "num_key_value_heads": 4,
            "head_dim": 256,
            "partial_rotary_factor": 0.25,
            "max_position_embeddings": 32768,
        },
    ),
}
"""The families by `model_type` of config.json."""
