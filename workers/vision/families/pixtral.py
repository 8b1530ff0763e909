"""The Pixtral tower, in Pixtral (LLaVA's class) and in Mistral 3."""

from dataclasses import replace

from workers.checkpoints.architectures.config import ModelConfig
from workers.checkpoints.architectures.fields import MAX_PARTS, Fields
from workers.vision.config import Merger, Mix, VisionConfig
from workers.vision.families.family import (
    CHANNELS,
    Array,
    ParameterSource,
    Sources,
    VisionFamily,
    activation,
    check_channels,
    chosen_layers,
    flat_kernel,
    head_size,
    llava_prefixes,
    renamed,
    required,
    square_side,
)
from workers.vision.preparation.pixtral import PixtralPreparer

EPS = 1e-5
"""The epsilon of the tower's norms."""
LAYER = {
    "norm1": "attention_norm",
    "norm2": "ffn_norm",
    "q": "attention.q_proj",
    "k": "attention.k_proj",
    "v": "attention.v_proj",
    "o": "attention.o_proj",
    "gate": "feed_forward.gate_proj",
    "up": "feed_forward.up_proj",
    "down": "feed_forward.down_proj",
}
"""Modules of a layer."""


def read_pixtral(fields: Fields, model: ModelConfig) -> VisionConfig:
    """Describe a tower of which every patch is a token."""
    vision = required(fields, "vision_config")
    if vision.get("model_type", "pixtral") != "pixtral":
        raise vision.error("model_type", f"{vision.get('model_type')!r} is not supported in this class, only 'pixtral'")
    hidden = vision.integer("hidden_size", 1024)
    heads = vision.integer("num_attention_heads", 16, most=MAX_PARTS)
    lanes = head_size(vision, "num_attention_heads", hidden, heads)
    if lanes % 4:
        raise vision.error("num_attention_heads", f"heads of {lanes} lanes are no multiple of 4, as two axes need")
    check_channels(vision)
    plan = vision.section("rope_parameters") or vision
    if plan.get("rope_type", "axial") not in ("axial", "default"):
        raise plan.error("rope_type", f"{plan.get('rope_type')!r} is not supported, only axial")
    biases = fields.flag("multimodal_projector_bias", True)
    inner = model.hidden_size
    return VisionConfig(
        family=str(fields.get("model_type")),
        patch_values=CHANNELS * square_side(vision, "patch_size", 16, 256) ** 2,
        layers=chosen_layers(fields, vision.integer("num_hidden_layers", 24, most=MAX_PARTS), -1),
        hidden=hidden,
        heads=heads,
        head_dim=lanes,
        mlp=vision.integer("intermediate_size", 4096),
        norm="rms",
        eps=EPS,
        activation=activation(vision, "hidden_act", "gelu"),
        gated=True,
        biases=False,
        placed_norm="rms",
        scale=lanes**-0.5,
        group=1,
        merger=Merger(
            "concat", None, False, EPS, inner, activation(fields, "projector_hidden_act", "gelu"), biases=biases
        ),
        output=inner,
        rope_theta=plan.number("rope_theta", 10000.0),
        rope_alternates=True,
    )


def pixtral_sources(config: VisionConfig) -> Sources:
    """Return the tensors of the tower and of LLaVA's projector."""
    found = renamed({"placed_norm": "tower.ln_pre"}, biased=False)
    found["patch.weight"] = ParameterSource(("tower.patch_conv.weight",), flat_kernel)
    for layer in range(config.layers):
        stored = f"tower.transformer.layers.{layer}"
        found |= renamed({f"layers.{layer}.{name}": f"{stored}.{each}" for name, each in LAYER.items()}, biased=False)
    names = {"merger.up": "projector.linear_1", "merger.down": "projector.linear_2"}
    return found | renamed(names, biased=config.merger.biases)


def _read_mistral3(fields: Fields, model: ModelConfig) -> VisionConfig:
    tower = read_pixtral(fields, model)
    text = required(fields, "text_config")
    merger = replace(
        tower.merger,
        norm="rms",
        norm_each=True,
        eps=text.number("rms_norm_eps", 1e-5),
        biases=fields.flag("multimodal_projector_bias", False),
        mixes=(Mix(tower.hidden),),
    )
    return replace(tower, merger=merger, group=fields.integer("spatial_merge_size", 2, most=16) ** 2)


def patches_last(tensor: Array, group: int) -> Array:
    """Order the inputs of the merging layer, [hidden, patches of a group], as the rows lie side by side."""
    return tensor.reshape(len(tensor), -1, group).swapaxes(1, 2).reshape(len(tensor), -1)


def _sources_mistral3(config: VisionConfig) -> Sources:
    merging = ParameterSource(
        ("projector.patch_merger.merging_layer.weight",), lambda tensor: patches_last(tensor, config.group)
    )
    found = pixtral_sources(config) | {"merger.mix.0.weight": merging}
    return found | renamed({"merger.norm": "projector.norm"}, biased=False)


MISTRAL3 = VisionFamily(llava_prefixes(), _read_mistral3, _sources_mistral3, PixtralPreparer.of)
