"""The SigLIP towers of Gemma 3, of SmolVLM and Idefics 3, of LFM2-VL, and of PaddleOCR-VL."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from workers.checkpoints.architectures.config import ModelConfig
from workers.checkpoints.architectures.fields import MAX_PARTS, Fields
from workers.vision.config import Merger, VisionConfig
from workers.vision.families.family import (
    CHANNELS,
    Array,
    ParameterSource,
    Sources,
    VisionFamily,
    activation,
    check_channels,
    flat_kernel,
    head_size,
    llava_prefixes,
    renamed,
    required,
)
from workers.vision.families.qwen import mrope_sections
from workers.vision.preparation.gemma3 import Gemma3Preparer
from workers.vision.preparation.idefics3 import Idefics3Preparer
from workers.vision.preparation.lfm2 import Lfm2Preparer
from workers.vision.preparation.paddleocr import PaddleOcrPreparer

LAYER = {
    "norm1": "layer_norm1",
    "norm2": "layer_norm2",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.out_proj",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
}
"""Modules of a layer."""


def siglip_tower(
    fields: Fields, model: ModelConfig, defaults: Mapping[str, int], side: int, group: int, merger: Merger
) -> VisionConfig:
    """Describe a tower with a square table of `side` positions, and transformers' `defaults` of its sizes."""
    vision = required(fields, "vision_config")
    hidden = vision.integer("hidden_size", defaults["hidden_size"])
    heads = vision.integer("num_attention_heads", defaults["num_attention_heads"], most=MAX_PARTS)
    lanes = head_size(vision, "num_attention_heads", hidden, heads)
    check_channels(vision)
    return VisionConfig(
        family=str(fields.get("model_type")),
        patch_values=CHANNELS * vision.integer("patch_size", defaults["patch_size"], most=256) ** 2,
        layers=vision.integer("num_hidden_layers", defaults["num_hidden_layers"], most=MAX_PARTS),
        hidden=hidden,
        heads=heads,
        head_dim=lanes,
        mlp=vision.integer("intermediate_size", defaults["intermediate_size"]),
        norm="layer",
        eps=vision.number("layer_norm_eps", 1e-6),
        activation=activation(vision, "hidden_act", "gelu_pytorch_tanh"),
        gated=False,
        biases=True,
        scale=lanes**-0.5,
        group=group,
        merger=merger,
        output=model.hidden_size,
        table=(side, side),
        last_norm=True,
    )


def siglip_sources(config: VisionConfig) -> Sources:
    found = renamed({"norm": "tower.post_layernorm"})
    found["patch.weight"] = ParameterSource(("tower.embeddings.patch_embedding.weight",), flat_kernel)
    found["patch.bias"] = ParameterSource(("tower.embeddings.patch_embedding.bias",))
    found["positions.weight"] = ParameterSource(("tower.embeddings.position_embedding.weight",))
    for layer in range(config.layers):
        stored = f"tower.encoder.layers.{layer}"
        found |= renamed({f"layers.{layer}.{name}": f"{stored}.{each}" for name, each in LAYER.items()})
    return found


SIGLIP = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "patch_size": 16,
    "image_size": 224,
}
"""Defaults of transformers' SiglipVisionConfig and Siglip2VisionConfig."""
IDEFICS3 = SIGLIP | {"hidden_size": 1152, "num_attention_heads": 16, "patch_size": 32}
"""Defaults of Idefics3VisionConfig and SmolVLMVisionConfig."""
PADDLEOCR = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "patch_size": 14,
    "image_size": 384,
}
"""Defaults of PaddleOCRVisionConfig."""


def table_side(vision: Fields, defaults: Mapping[str, int]) -> int:
    """Patches of a side of the images that the table is for."""
    patch, image = (vision.integer(name, defaults[name], most=8192) for name in ("patch_size", "image_size"))
    if image < patch:
        raise vision.error("image_size", f"{image} is less than the patch of {patch} pixels")
    return image // patch


def _read_gemma3(fields: Fields, model: ModelConfig) -> VisionConfig:
    vision = required(fields, "vision_config")
    side, count = table_side(vision, SIGLIP), fields.integer("mm_tokens_per_image", 256)
    tokens = math.isqrt(count)
    if tokens**2 != count or side % tokens:
        raise fields.error("mm_tokens_per_image", f"{count} tokens do not divide {side} x {side} patches into squares")
    merger = Merger("mean", "rms", False, vision.number("layer_norm_eps", 1e-6), 0, None, False)
    config = siglip_tower(fields, model, SIGLIP, side, (side // tokens) ** 2, merger)
    return replace(config, bidirectional="all")


def _sources_gemma3(config: VisionConfig) -> Sources:
    return siglip_sources(config) | {
        "merger.norm.weight": ParameterSource(("projector.mm_soft_emb_norm.weight",), _centred),
        "merger.down.weight": ParameterSource(("projector.mm_input_projection_weight",), _transposed),
    }


def _read_idefics3(fields: Fields, model: ModelConfig) -> VisionConfig:
    vision = required(fields, "vision_config")
    side, scale = table_side(vision, IDEFICS3), fields.integer("scale_factor", 2, most=64)
    if side % scale:
        raise fields.error("scale_factor", f"{scale} does not divide {side} patches of a side")
    merger = Merger("concat", None, False, 0.0, 0, None, False)
    return siglip_tower(fields, model, IDEFICS3, side, scale**2, merger)


def _sources_idefics3(config: VisionConfig) -> Sources:
    return siglip_sources(config) | renamed({"merger.down": "connector.modality_projection.proj"}, biased=False)


def _read_lfm2(fields: Fields, model: ModelConfig) -> VisionConfig:
    vision = required(fields, "vision_config")
    side, factor = math.isqrt(vision.integer("num_patches", 256)), fields.integer("downsample_factor", 2, most=64)
    merger = Merger(
        pooling="concat",
        norm="layer" if fields.flag("projector_use_layernorm", True) else None,
        norm_each=False,
        eps=1e-5,
        inner=fields.integer("projector_hidden_size", 2560),
        activation=activation(fields, "projector_hidden_act", "gelu"),
        biases=fields.flag("projector_bias", True),
    )
    return replace(siglip_tower(fields, model, SIGLIP, side, factor**2, merger), table_kind="resized")


def _sources_lfm2(config: VisionConfig) -> Sources:
    names = {"merger.up": "projector.linear_1", "merger.down": "projector.linear_2"}
    found = siglip_sources(config) | renamed(names, biased=config.merger.biases)
    return found | (renamed({"merger.norm": "projector.layer_norm"}) if config.merger.norm else {})


def _read_paddleocr(fields: Fields, model: ModelConfig) -> VisionConfig:
    vision, text = required(fields, "vision_config"), fields.section("text_config") or fields
    if text.flag("use_bias", False):
        raise text.error("use_bias", "true is not supported")
    side, merge = table_side(vision, PADDLEOCR), vision.integer("spatial_merge_size", 2, most=16)
    hidden = vision.integer("hidden_size", PADDLEOCR["hidden_size"])
    merger = Merger("concat", "layer", True, 1e-5, hidden * merge**2, "gelu", True)
    plan = vision.section("rope_parameters")
    tower = siglip_tower(fields, model, PADDLEOCR, side, merge**2, merger)
    if tower.head_dim % 4:
        raise vision.error("num_attention_heads", f"heads of {tower.head_dim} lanes are no multiple of 4")
    theta = 10000.0 if plan is None else plan.number("rope_theta", 10000.0)
    return replace(tower, table_kind="bilinear", rope_theta=theta, mrope=mrope_sections(fields))


def _sources_paddleocr(config: VisionConfig) -> Sources:
    names = {"norm": "pre_norm", "up": "linear_1", "down": "linear_2"}
    return siglip_sources(config) | renamed({f"merger.{name}": f"projector.{each}" for name, each in names.items()})


def _centred(tensor: Array) -> Array:
    """Add the one that the norms of Gemma 3 leave out."""
    changed: Array = tensor.astype(np.float32) + np.float32(1)
    return changed


def _transposed(tensor: Array) -> Array:
    return tensor.T


IDEFICS3_PREFIXES = {
    "model.vision_model.": "tower.",
    "vision_model.": "tower.",
    "model.connector.": "connector.",
    "connector.": "connector.",
}
PADDLEOCR_PREFIXES = {
    f"{outer}{stored}": own
    for outer, projector in (("model.", "projector."), ("", "mlp_AR."))
    for stored, own in (("visual.vision_model.", "tower."), (projector, "projector."))
}
GEMMA3_FAMILY = VisionFamily(llava_prefixes(), _read_gemma3, _sources_gemma3, Gemma3Preparer.of)
IDEFICS3_FAMILY = VisionFamily(IDEFICS3_PREFIXES, _read_idefics3, _sources_idefics3, Idefics3Preparer.of)
LFM2_FAMILY = VisionFamily(llava_prefixes(), _read_lfm2, _sources_lfm2, Lfm2Preparer.of)
PADDLEOCR_FAMILY = VisionFamily(PADDLEOCR_PREFIXES, _read_paddleocr, _sources_paddleocr, PaddleOcrPreparer.of)
