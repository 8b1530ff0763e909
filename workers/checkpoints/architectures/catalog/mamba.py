"""Families with Mamba-2 layers: Granite 4 and Nemotron-H."""

from collections.abc import Mapping
from dataclasses import replace

from workers.checkpoints.architectures.catalog.moe import (
    EXPERTS,
    GRANITE,
    GRANITE_NAMES,
    MULTIPLIERS,
    ROUTED,
    granite_shared,
    sigmoid_router,
)
from workers.checkpoints.architectures.family import Family, UndescribedParts
from workers.checkpoints.architectures.fields import Fields
from workers.checkpoints.architectures.parts import ExpertNames, Names, Norms
from workers.checkpoints.weight_files import indexed_names

PATTERN: Mapping[str, str] = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""The layers that letters of `hybrid_override_pattern` stand for."""
NEMOTRON_EXPERTS = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 7688,
    "moe_shared_expert_intermediate_size": 7688,
    "norm_topk_prob": True,
}
"""Values of Nemotron-H's fields about experts that config.json leaves out."""
LISTS = ("layers_block_type", "hybrid_override_pattern")
"""The fields of Nemotron-H that list the layers, beside `layer_types`."""

MLX_NAMES = Names()
"""Granite 4 without experts in GGUF, and in checkpoints that mlx-lm has converted."""


def mamba_layers(fields: Fields, layers: int) -> list[str]:
    """Granite's rule: no layer attends."""
    return ["mamba"] * layers


def pattern_layers(fields: Fields, layers: int) -> list[str]:
    """Nemotron-H's rule: `layers_block_type` lists the layers, or a letter of `hybrid_override_pattern` each."""
    name = next((name for name in LISTS if fields.get(name) is not None), LISTS[0])
    stated = fields.get(name)
    if name == LISTS[0] and isinstance(stated, list):
        return list(stated)
    if not isinstance(stated, str) or not set(stated) <= set(PATTERN):
        raise fields.error(name, f"is not a list of layers, or a text of {', '.join(PATTERN)}")
    return [PATTERN[letter] for letter in stated]


def rotates(fields: Fields) -> bool:
    """Granite 4: attention has rotary positions if `position_embedding_type` is "rope"."""
    kind = fields.get("position_embedding_type")
    if kind not in (None, "nope", "rope"):
        raise fields.error("position_embedding_type", f"{kind!r} is not supported, only 'rope' and 'nope'")
    return bool(kind == "rope")


def shared_mlp_width(fields: Fields) -> int:
    """Return the width of the MLP, which is the shared expert where there are others."""
    return fields.integer("shared_intermediate_size")


def granite(family: Family, fields: Fields) -> Family:
    """Granite 4: models with experts have the MLP beside them, as a shared expert. The heads of Mamba-2 are as wide as
    `mamba_expand` says."""
    heads, inner = fields.integer("mamba_n_heads"), fields.integer("mamba_expand") * fields.integer("hidden_size")
    lanes = fields.get("mamba_d_head", "auto")
    if inner % heads or lanes not in ("auto", inner // heads):
        raise fields.error("mamba_d_head", f"{heads} heads of {lanes!r} lanes are not {inner} lanes together")
    if not fields.get("num_local_experts"):
        return replace(family, names=MLX_NAMES) if _converted(fields) else family
    mixture = replace(family, experts=True, shared_ffn="shared_intermediate_size", read_ffn=None)
    return granite_shared(mixture, fields)


def _converted(fields: Fields) -> bool:
    """Return whether the MLPs of a checkpoint without experts are divided: in GGUF, or by mlx-lm, which writes an index
    for a single file as well."""
    if fields.get("quantization") is not None or fields.file.name != "config.json":
        return True
    return f"model.layers.0.{MLX_NAMES.down}.weight" in indexed_names(fields.file)


def layers_of_experts(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Nemotron-H's rule: the list of layers names those with a mixture of experts."""
    return tuple(kind == "moe" for kind in fields.get("layer_types") or pattern_layers(fields, layers))


def nemotron_h(family: Family, fields: Fields) -> Family:
    """Nemotron-H: the number of layers is that of the list, where config.json leaves it out. Models whose list has
    mixtures of experts have one shared expert, whatever `n_shared_experts` is."""
    if fields.get("use_bias", False) is not False:
        raise fields.error("use_bias", "true is not supported, only false")
    if fields.flag("tie_word_embeddings", False):
        raise fields.error("tie_word_embeddings", "true is not supported for nemotron_h, only false")
    layers = fields.get("layer_types") or pattern_layers(fields, 0)
    family = replace(family, defaults=dict(family.defaults) | {"num_hidden_layers": len(layers)})
    if "moe" not in layers:
        return family
    if fields.get("mlp_bias"):
        problem = "NemotronHForCausalLM with a mixture of experts and mlp_bias true is not supported"
        raise UndescribedParts(fields.file, "architectures", problem)
    return replace(
        family,
        experts=True,
        expert_ffn="moe_intermediate_size",
        normalizes_experts=None,
        shared_ffn="moe_shared_expert_intermediate_size",
        expert_latent="moe_latent_size",
        read_router=sigmoid_router,
        layers_with_experts=layers_of_experts,
        field_names=dict(family.field_names) | {"num_experts": "n_routed_experts"},
        defaults=dict(family.defaults) | NEMOTRON_EXPERTS,
    )


MAMBAS: Mapping[str, Family] = {
    "granitemoehybrid": replace(
        GRANITE,
        architecture="GraniteMoeHybridForCausalLM",
        names=replace(GRANITE_NAMES, gate_up=("shared_mlp.input_linear",), down="shared_mlp.output_linear"),
        mixers={
            "attention": "attention",
            "full_attention": "attention",
            "mamba": "mamba2",
            "linear_attention": "mamba2",
        },
        mixer_rule=mamba_layers,
        positions=rotates,
        experts=False,
        read_ffn=shared_mlp_width,
        reads=EXPERTS | MULTIPLIERS,
        variant=granite,
        defaults=dict(GRANITE.defaults)
        | {
            "num_local_experts": 8,
            "shared_intermediate_size": 1024,
            "mamba_n_heads": 128,
            "mamba_d_state": 256,
            "mamba_expand": 2,
        },
    ),
    "nemotron_h": Family(
        "NemotronHForCausalLM",
        norms=Norms(before_attention="norm"),
        biases=None,
        activation="relu2",
        gated=False,
        mlp_biases=None,
        single_parts=True,
        positions=lambda fields: False,
        names=Names(
            qkv=("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"),
            o="mixer.o_proj",
            gate_up=("mixer.up_proj",),
            down="mixer.down_proj",
            experts=ExpertNames(
                "mixer.gate",
                None,
                "mixer.experts.{}.up_proj",
                "mixer.experts.{}.down_proj",
                ("mixer.shared_experts.up_proj",),
                "mixer.shared_experts.down_proj",
                router_bias="mixer.gate.e_score_correction_bias",
            ),
            embedding="backbone.embeddings",
            layers="backbone.layers.",
            norm="backbone.norm_f",
            mamba="mixer",
        ),
        mixers={
            "attention": "attention",
            "full_attention": "attention",
            "mamba": "mamba2",
            "linear_attention": "mamba2",
            "mlp": "none",
            "moe": "none",
        },
        mixer_rule=pattern_layers,
        variant=nemotron_h,
        reads=ROUTED | {"n_shared_experts"},  # of no effect without a layer of experts
        other_tensors=("mtp.",),
        field_names={
            "rms_norm_eps": "layer_norm_epsilon",
            "hidden_act": "mlp_hidden_act",
            "mamba_n_heads": "mamba_num_heads",
            "mamba_d_head": "mamba_head_dim",
            "mamba_n_groups": "n_groups",
            "mamba_d_state": "ssm_state_size",
            "mamba_d_conv": "conv_kernel",
            "mamba_conv_bias": "use_conv_bias",
        },
        defaults={
            "layer_norm_epsilon": 1e-5,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 4096,
            "mamba_num_heads": 128,
            "mamba_head_dim": 64,
            "n_groups": 8,
            "ssm_state_size": 128,
        },
    ),
}
"""The families by `model_type` of config.json."""
