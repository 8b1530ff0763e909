"""LLaVA-OneVision: a SigLIP tower, whose rows of a whole image and of tiles are packed, and LLaVA's projector."""

from dataclasses import replace

from workers.checkpoints.architectures.config import ModelConfig
from workers.checkpoints.architectures.fields import MAX_PARTS, Fields
from workers.vision.config import Merger, VisionConfig
from workers.vision.families.family import (
    ParameterSource,
    Sources,
    VisionFamily,
    activation,
    chosen_layers,
    llava_prefixes,
    renamed,
    required,
)
from workers.vision.families.siglip import SIGLIP, siglip_sources, siglip_tower, table_side
from workers.vision.preparation.llava import LlavaOnevisionPreparer


def _read(fields: Fields, model: ModelConfig) -> VisionConfig:
    """Describe a tower in which the whole image, and each tile, attends to itself: they are windows."""
    vision = required(fields, "vision_config")
    kind = vision.get("model_type", "siglip_vision_model")
    if kind != "siglip_vision_model":
        raise vision.error("model_type", f"{kind!r} is not supported in this class, only 'siglip_vision_model'")
    if (strategy := fields.get("vision_feature_select_strategy", "full")) != "full":
        raise fields.error("vision_feature_select_strategy", f"{strategy!r} is not supported, only 'full'")
    merger = Merger(
        pooling="concat",
        norm=None,
        norm_each=False,
        eps=0.0,
        inner=model.hidden_size,
        activation=activation(fields, "projector_hidden_act", "gelu"),
        biases=fields.flag("multimodal_projector_bias", True),
    )
    tower = siglip_tower(fields, model, SIGLIP, table_side(vision, SIGLIP), 1, merger)
    depth = vision.integer("num_hidden_layers", SIGLIP["num_hidden_layers"], most=MAX_PARTS)
    layers = chosen_layers(fields, depth, -1)
    return replace(tower, layers=layers, last_norm=False, full_layers=frozenset(), newline=True)


def _sources(config: VisionConfig) -> Sources:
    names = {"merger.up": "projector.linear_1", "merger.down": "projector.linear_2"}
    found = siglip_sources(config) | renamed(names, biased=config.merger.biases)
    return found | {"newline.weight": ParameterSource(("newline",))}


PREFIXES = llava_prefixes() | {"model.image_newline": "newline", "image_newline": "newline"}
LLAVA_ONEVISION = VisionFamily(PREFIXES, _read, _sources, LlavaOnevisionPreparer.of)
