"""The tower of GLM-4.1V, GLM-4.5V and GLM-4.6V, and that of GLM-OCR."""

import math
from dataclasses import replace

from workers.checkpoints.architectures.config import ModelConfig
from workers.checkpoints.architectures.fields import Fields
from workers.vision.config import Merger, Mix, VisionConfig
from workers.vision.families.family import (
    CHANNELS,
    Array,
    ParameterSource,
    Sources,
    VisionFamily,
    activation,
    renamed,
    required,
    square_side,
)
from workers.vision.families.qwen import PREFIXES, block_sources, mrope_sections, read_tower
from workers.vision.preparation.glm import GlmPreparer

NORM_EPS = 1e-5
"""The epsilon of the norm of the merger."""


def _read(fields: Fields, model: ModelConfig) -> VisionConfig:
    """The merger is as wide as `intermediate_size` says, and the MLP of a layer as the tokens are."""
    vision = required(fields, "vision_config")
    if vision.flag("attention_bias", False):
        raise vision.error("attention_bias", "true is not supported")
    tower = _tower(fields, model, vision)
    image, patch = square_side(vision, "image_size", 336, 8192), square_side(vision, "patch_size", 14, 256)
    if image < patch:
        raise vision.error("image_size", f"{image} is less than the patch of {patch} pixels")
    return replace(
        tower,
        mlp=tower.output,
        biases=False,
        patch_bias=True,
        patch_norm="rms",
        merger=_merger(vision, tower.output, tower.mlp),
        table=(image // patch, image // patch),
        table_kind="bicubic",
    )


def _read_ocr(fields: Fields, model: ModelConfig) -> VisionConfig:
    """Describe a tower with norms of heads and without a table. The merger is as wide as three tokens."""
    vision = required(fields, "vision_config")
    tower = _tower(fields, model, vision)
    biases = vision.flag("attention_bias", True)
    merger = _merger(vision, tower.output, CHANNELS * tower.output)
    return replace(tower, biases=biases, patch_bias=True, qk_norm=True, merger=merger)


def _tower(fields: Fields, model: ModelConfig, vision: Fields) -> VisionConfig:
    sections = mrope_sections(fields, (8, 12, 12))
    tower = read_tower(fields, model, str(fields.get("model_type")), "silu", sections=sections)
    return replace(tower, norm="rms", eps=vision.number("rms_norm_eps", 1e-5), gated=True, last_norm=True)


def _merger(vision: Fields, output: int, inner: int) -> Merger:
    act = activation(vision, "hidden_act", "silu")
    mixes = (Mix(output, bias=True), Mix(output, norm="layer", activation="gelu"))
    return Merger("concat", None, False, NORM_EPS, inner, act, False, mixes=mixes, gated=True)


def _sources(config: VisionConfig) -> Sources:
    found = block_sources(config, {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"})
    found |= renamed({"patch_norm": "post_conv_layernorm", "norm": "post_layernorm"}, biased=False)
    for layer in range(config.layers):
        names = {f"layers.{layer}.{name}": f"blocks.{layer}.attn.{name}" for name in ("q_norm", "k_norm")}
        found |= renamed(names, biased=False)
    found |= {
        "patch.bias": ParameterSource(("patch_embed.proj.bias",)),
        "positions.weight": ParameterSource(("embeddings.position_embedding.weight",)),
        "merger.mix.0.weight": ParameterSource(("downsample.weight",), lambda tensor: _patches_first(tensor, config)),
        "merger.mix.0.bias": ParameterSource(("downsample.bias",)),
    }
    names = {"mix.1": "proj", "gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
    found |= renamed({f"merger.{name}": f"merger.{each}" for name, each in names.items()}, biased=False)
    return found | renamed({"merger.mix.1.norm": "merger.post_projection_norm"})


def _patches_first(tensor: Array, config: VisionConfig) -> Array:
    """Flatten a convolution over a group of patches as their rows lie side by side; MLX's layout is in this order."""
    side = math.isqrt(config.group)
    if tensor.ndim == 4 and tensor.shape[1:] != (side, side, config.hidden):
        tensor = tensor.transpose(0, 2, 3, 1)
    return tensor.reshape(len(tensor), -1)


GLM4V = VisionFamily(PREFIXES, _read, _sources, GlmPreparer.of)
GLM_OCR = VisionFamily(PREFIXES, _read_ocr, _sources, GlmPreparer.of)
