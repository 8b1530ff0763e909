"""LLaVA 1.5: a CLIP tower, or Pixtral's, and a projector of two layers."""

from workers.checkpoints.architectures.config import ModelConfig
from workers.checkpoints.architectures.fields import MAX_PARTS, Fields
from workers.vision.config import Merger, VisionConfig
from workers.vision.families.family import (
    CHANNELS,
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
    zeros,
)
from workers.vision.families.pixtral import pixtral_sources, read_pixtral
from workers.vision.families.siglip import LAYER
from workers.vision.preparation.llava import LlavaPreparer
from workers.vision.preparation.pixtral import PixtralPreparer
from workers.vision.preparation.preparer import Preparer
from workers.vision.preparation.settings import PreparationSettings

CLIP, PIXTRAL = "clip_vision_model", "pixtral"


def _kind(fields: Fields) -> str:
    """Return the kind of the tower. Raises `CheckpointError` for another one than those above."""
    vision = required(fields, "vision_config")
    kind = vision.get("model_type", CLIP)
    if kind not in (CLIP, PIXTRAL):
        raise vision.error("model_type", f"{kind!r} is not supported in this class, only {CLIP!r} or {PIXTRAL!r}")
    strategy = fields.get("vision_feature_select_strategy", "default")
    if strategy != (wanted := "full" if kind == PIXTRAL else "default"):
        problem = f"{strategy!r} is not supported with {kind!r}, only {wanted!r}"
        raise fields.error("vision_feature_select_strategy", problem)
    return str(kind)


def _read(fields: Fields, model: ModelConfig) -> VisionConfig:
    if _kind(fields) == PIXTRAL:
        return read_pixtral(fields, model)
    vision = required(fields, "vision_config")
    hidden = vision.integer("hidden_size", 768)
    heads = vision.integer("num_attention_heads", 12, most=MAX_PARTS)
    lanes = head_size(vision, "num_attention_heads", hidden, heads)
    check_channels(vision)
    patch, image = square_side(vision, "patch_size", 32, 256), square_side(vision, "image_size", 224, 8192)
    if image % patch:
        raise vision.error("image_size", f"{image} is no multiple of the patch of {patch} pixels")
    projector = activation(fields, "projector_hidden_act", "gelu")
    biases = fields.flag("multimodal_projector_bias", True)
    return VisionConfig(
        family=str(fields.get("model_type")),
        patch_values=CHANNELS * patch**2,
        layers=chosen_layers(fields, vision.integer("num_hidden_layers", 12, most=MAX_PARTS), -2),
        hidden=hidden,
        heads=heads,
        head_dim=lanes,
        mlp=vision.integer("intermediate_size", 3072),
        norm="layer",
        eps=vision.number("layer_norm_eps", 1e-5),
        activation=activation(vision, "hidden_act", "quick_gelu"),
        gated=False,
        biases=True,
        placed_norm="layer",
        extra=True,
        scale=lanes**-0.5,
        group=1,
        merger=Merger("concat", None, False, 0.0, model.hidden_size, projector, biases=biases),
        output=model.hidden_size,
        table=(image // patch, image // patch),
    )


def _sources(config: VisionConfig) -> Sources:
    if config.rope_theta:
        return pixtral_sources(config)
    found = renamed({"placed_norm": "tower.pre_layrnorm"})
    found |= {
        "patch.weight": ParameterSource(("tower.embeddings.patch_embedding.weight",), flat_kernel),
        "patch.bias": zeros(config.hidden),
        "extra.weight": ParameterSource(("tower.embeddings.class_embedding",)),
        "positions.weight": ParameterSource(("tower.embeddings.position_embedding.weight",)),
    }
    for layer in range(config.layers):
        stored = f"tower.encoder.layers.{layer}"
        found |= renamed({f"layers.{layer}.{name}": f"{stored}.{each}" for name, each in LAYER.items()})
    names = {"merger.up": "projector.linear_1", "merger.down": "projector.linear_2"}
    return found | renamed(names, biased=config.merger.biases)


def _prepare(settings: PreparationSettings) -> Preparer:
    kind = PixtralPreparer if _kind(settings.config) == PIXTRAL else LlavaPreparer
    return kind.of(settings)


LLAVA = VisionFamily(llava_prefixes(), _read, _sources, _prepare)
