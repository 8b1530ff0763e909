"""InternVL in Hugging Face's format: InternViT, whose layers are scaled, and a projector of two layers."""

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
    chosen_layers,
    flat_kernel,
    head_size,
    llava_prefixes,
    renamed,
    required,
    square_side,
)
from workers.vision.preparation.internvl import InternVlPreparer

EPS = 1e-5
"""The epsilon of the projector's norm."""
LAYER = {"norm1": "layernorm_before", "norm2": "layernorm_after", "up": "mlp.fc1"}
"""Modules of a layer that are as they are stored."""
SCALED = {"o": ("attention.projection_layer", "lambda_1"), "down": ("mlp.fc2", "lambda_2")}
"""The modules whose outputs are multiplied, and by what."""


def _read(fields: Fields, model: ModelConfig) -> VisionConfig:
    vision = required(fields, "vision_config")
    hidden = vision.integer("hidden_size", 1024)
    heads = vision.integer("num_attention_heads", 16, most=MAX_PARTS)
    lanes = head_size(vision, "num_attention_heads", hidden, heads)
    check_channels(vision)
    for name, supported in (
        ("use_qk_norm", False),
        ("attention_bias", True),
        ("norm_type", "layer_norm"),
        ("use_absolute_position_embeddings", True),
    ):
        found = vision.get(name, False if name == "attention_bias" else supported)
        if found != supported:
            raise vision.error(name, f"{found!r} is not supported, only {supported!r}")
    if fields.get("vision_feature_select_strategy", "default") != "default":
        raise fields.error("vision_feature_select_strategy", "is not 'default', which is not supported")
    side = square_side(vision, "image_size", 448, 8192) // (patch := square_side(vision, "patch_size", 14, 256))
    ratio = fields.number("downsample_ratio", 0.5)
    merge = round(1 / ratio) if 0 < ratio <= 1 else 0
    if not merge or abs(merge * ratio - 1) > 1e-6 or not side or side % merge:
        raise fields.error("downsample_ratio", f"{ratio!r} does not divide {side} patches of a side into whole tokens")
    depth = vision.integer("num_hidden_layers", 24, most=MAX_PARTS)
    projector = activation(fields, "projector_hidden_act", "gelu")
    layers = chosen_layers(fields, depth, -1)
    return VisionConfig(
        family=str(fields.get("model_type")),
        patch_values=CHANNELS * patch**2,
        layers=layers,
        hidden=hidden,
        heads=heads,
        head_dim=lanes,
        mlp=vision.integer("intermediate_size", 4096),
        norm="layer",
        eps=vision.number("layer_norm_eps", 1e-6),
        activation=activation(vision, "hidden_act", "gelu"),
        gated=False,
        biases=True,
        extra=True,
        scale=lanes**-0.5,
        group=merge**2,
        merger=Merger("concat", "layer", False, EPS, model.hidden_size, projector, True),
        output=model.hidden_size,
        table=(side, side),
        last_norm=layers == depth and not vision.flag("use_mean_pooling", True),
    )


def _sources(config: VisionConfig) -> Sources:
    embeddings = "tower.embeddings."
    bias = f"{embeddings}patch_embeddings.projection.bias"
    found = renamed({"norm": "tower.layernorm"}) | {
        "patch.weight": ParameterSource((f"{embeddings}patch_embeddings.projection.weight",), flat_kernel),
        "patch.bias": ParameterSource((bias,)),
        "extra.weight": ParameterSource((f"{embeddings}cls_token", bias), without_bias),
        "positions.weight": ParameterSource((f"{embeddings}position_embeddings",), lambda table: table[0]),
    }
    for layer in range(config.layers):
        own, stored = f"layers.{layer}", f"tower.encoder.layer.{layer}"
        found |= renamed({f"{own}.{name}": f"{stored}.{each}" for name, each in LAYER.items()})
        found |= renamed({f"{own}.{name}": f"{stored}.attention.{name}_proj" for name in "qkv"})
        for name, (module, factor) in SCALED.items():
            for end in ("weight", "bias"):
                tensors = (f"{stored}.{module}.{end}", f"{stored}.{factor}")
                found[f"{own}.{name}.{end}"] = ParameterSource(tensors, scaled)
    names = {"norm": "layer_norm", "up": "linear_1", "down": "linear_2"}
    return found | renamed({f"merger.{name}": f"projector.{each}" for name, each in names.items()})


def without_bias(token: Array, bias: Array) -> Array:
    """Return the class token less the bias that the embedding adds to every row.

    Raises `ValueError` if their sizes differ.
    """
    if token.size != bias.size:
        raise ValueError(f"a class token of {token.size} numbers beside a bias of {bias.size}")
    changed: Array = token.reshape(-1).astype(np.float32) - bias.astype(np.float32)
    return changed


def scaled(tensor: Array, factors: Array) -> Array:
    """Multiply each output of a linear layer. Raises `ValueError` for another number of factors."""
    if factors.shape != tensor.shape[:1]:
        raise ValueError(f"{factors.shape} factors of {tensor.shape} weights")
    changed: Array = (tensor.astype(np.float32).T * factors.astype(np.float32)).T
    return changed


INTERNVL = VisionFamily(llava_prefixes(), _read, _sources, InternVlPreparer.of)
