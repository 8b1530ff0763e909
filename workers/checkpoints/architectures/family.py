"""The description of a family of models: what config.json does not state.

A field of config.json that changes the mathematics is either read by the family's entry or refused (`NEUTRAL`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workers.checkpoints.architectures.fields import Fields
from workers.checkpoints.architectures.parts import (
    Activation,
    ExpertRouter,
    HeadNorm,
    LayerConfig,
    MixerKind,
    MtpNames,
    Names,
    NormKind,
    Norms,
    QkvLayout,
)
from workers.checkpoints.architectures.rope import Rope
from workers.checkpoints.json_files import CheckpointError

NEUTRAL: Mapping[str, float | list[int]] = {
    "attention_multiplier": 1,
    "attention_out_bias": 0,
    "attn_logit_softcapping": 0,
    "clip_qkv": 0,
    "n_routed_experts": 0,
    "n_shared_experts": 0,
    "conv_bias": 0,
    "dim_model_base": 0,
    "embedding_multiplier": 1,
    "final_logit_softcapping": 0,
    "logit_scale": 1,
    "logits_scaling": 1,
    "lm_head_bias": 0,
    "mamba_proj_bias": 0,
    "mlp_bias": 0,
    "moe_num_experts": 0,
    "moe_num_shared_experts": 0,
    "no_rope_layers": [],
    "num_experts": 0,
    "num_local_experts": 0,
    "num_shared_experts": 0,
    "query_pre_attn_scalar": 0,
    "residual_multiplier": 1,
    "routed_scaling_factor": 1,
    "rope_interleaved": 0,
    "rotary_pct": 1,
    "scale_depth": 0,
    "scale_emb": 1,
    "swiglu_alpha": 0,
    "swiglu_limit": 0,
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
    "clamped_swiglu": "clamped_swiglu",
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


def every_other_before_max_window_layers(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Qwen2-MoE's rule: every other one of the first `max_window_layers` has a window, from the first on."""
    end = fields.integer("max_window_layers")
    return tuple(layer % 2 == 0 and layer < end for layer in range(layers))


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


class UndescribedParts(CheckpointError):
    """Raised for a model of a known family with parts that Baton does not compute, but mlx-lm may."""


@dataclass(frozen=True, slots=True)
class Family:
    """One family: how its models differ from Llama. The defaults of the fields describe Llama."""

    architecture: str
    """The class in transformers, which `architectures` of config.json names."""
    earlier_architecture: str | None = None
    """The name of the class in checkpoints that were published before transformers had it."""
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
    shared_ffn: str | None = None
    """The field with the width of the shared expert. None: there is no shared expert."""
    shared_gate: bool = False
    """The shared expert has a gate."""
    expert_latent: str | None = None
    """The field with the width of the latents that experts compute, if it is stated. None: they compute rows."""
    shared_count: str | None = None
    """The field with the number of shared experts, which are one MLP, so many times as wide as an expert; it may be 0.
    None: `shared_ffn` has the width."""
    read_router: Callable[[Fields], ExpertRouter] = lambda fields: ExpertRouter()
    """The rule for the router."""
    layers_with_experts: Callable[[Fields, int], tuple[bool, ...]] | None = None
    """The rule that says for each of a number of layers whether it has experts. None: `decoder_sparse_step` and
    `mlp_only_layers` decide."""
    mtp: MtpNames | None = None
    """The names of the heads for multi-token prediction that checkpoints may have."""
    expert_biases: bool = False
    """The router and the experts have biases."""
    sinks: bool = False
    """The softmax of attention has a learned logit more for each query head."""
    reads: frozenset[str] = frozenset()
    """The fields of `NEUTRAL` that the family has."""
    field_names: Mapping[str, str] = field(default_factory=dict)
    """The names in config.json of fields that have another one in Llama's, by that name; `defaults` has those too."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Names that fields may have in config.json as well, by the usual ones, which `defaults` has."""
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
    """In models that state `sliding_window`, layers without an attention window have no rotary positions."""
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
    mixers: Mapping[str, MixerKind] = field(default_factory=dict)
    """The mixers of layers, by their names in `layer_types`; empty: attention in every layer."""
    mixer_rule: Callable[[Fields, int], list[str]] | None = None
    """The rule for `layer_types` where config.json leaves it out."""
    single_parts: bool = False
    """A layer has a mixer or an MLP, and not both."""
    positions: Callable[[Fields], bool] = lambda fields: True
    """Says whether attention has rotary positions."""
    attention_gate: bool = False
    """Attention's output is multiplied by the sigmoid of a gate, which is projected beside the queries of each head."""
    latent: bool = False
    """Layers have latent attention."""
    read_ffn: Callable[[Fields], int] | None = None
    """The rule for the width of the MLP. None: `intermediate_size`."""
    other_tensors: tuple[str, ...] = ()
    """Prefixes of tensors that checkpoints may have and that the model's logits do not depend on."""
    variant: Callable[["Family", Fields], "Family"] = lambda family, fields: family
    """Returns the family as fields of a config.json change it, which are read with the family's names and defaults."""
    further: Callable[[Fields, tuple[LayerConfig, ...], tuple[Rope, ...]], Mapping[str, Any]] = (
        lambda fields, plan, ropes: {}
    )
    """Returns fields of `ModelConfig` that only this family has, from config.json and the layers and rotary embeddings
    that were read as those of other families."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of fields that config.json leaves out, as in transformers."""
