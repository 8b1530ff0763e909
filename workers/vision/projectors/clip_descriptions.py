"""The fields of config.json and preprocessor_config.json of projectors with towers of CLIP, InternViT and Pixtral, and
of those without a tower: see `descriptions`."""

import math
from typing import Any

from workers.checkpoints.architectures.fields import brief
from workers.vision.families.pixtral import EPS as PIXTRAL_EPS
from workers.vision.projectors.descriptions import normalization, sizes, tokens_side
from workers.vision.projectors.projector_file import ProjectorFile

Values = dict[str, Any]
PATCH = "v.patch_embd.weight"


def exact_activation(file: ProjectorFile, default: str) -> str:
    """Read the activation of MLPs: `gelu` is the exact one here, as converters state it of checkpoints."""
    for key, name in (("use_gelu", "gelu"), ("use_silu", "silu")):
        if file.keys.get(key) is True:
            default = name
    return default


def _tower(file: ProjectorFile, activation: str) -> Values:
    return sizes(file, activation) | {
        "hidden_act": exact_activation(file, activation),
        "image_size": file.integer("image_size"),
        "layer_norm_eps": file.number("attention.layer_norm_epsilon"),
    }


def describe_internvl(file: ProjectorFile) -> Values:
    vision = _tower(file, "gelu") | {"attention_bias": True, "use_mean_pooling": not file.has("v.post_ln.weight")}
    return {"vision_config": vision, "downsample_ratio": 1 / tokens_side(file, 2)}


def prepare_internvl(file: ProjectorFile) -> Values:
    side = file.integer("image_size")
    found = normalization(file) | {"size": {"height": side, "width": side}}
    for key, name in (("min_tiles", "min_patches"), ("max_tiles", "max_patches")):
        if file.get(f"preproc_{key}") is not None:
            found[name] = file.integer(f"preproc_{key}")
    return found


def describe_llava(file: ProjectorFile) -> Values:
    """Files have the layers that are computed alone. Raises `ProjectorUnfit` for tiles, and for several layers whose
    outputs are taken."""
    if file.get("image_grid_pinpoints") or file.has("model.image_newline"):
        raise file.unfit("image_grid_pinpoints", "has tiles, as LLaVA 1.6, which is not supported in GGUF files")
    taken = file.get("feature_layer") or [file.layers]
    if taken != [file.layers]:
        raise file.unfit("feature_layer", f"{brief(taken)} is not the last one of {file.layers} layers alone")
    vision = _tower(file, "quick_gelu") | {"model_type": "clip_vision_model"}
    biases = file.has("mm.0.bias")
    return {"vision_config": vision, "vision_feature_layer": -1, "multimodal_projector_bias": biases}


def prepare_llava(file: ProjectorFile) -> Values:
    """Images are made square, as LLaVA 1.5 was trained, of which such files are made."""
    side = file.integer("image_size")
    found = normalization(file) | {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}
    return found | {"do_pad": True}


def describe_pixtral(file: ProjectorFile) -> Values:
    file.check_epsilon(PIXTRAL_EPS)
    vision = _tower(file, "silu") | {"model_type": "pixtral", "rope_theta": file.keys.number("rope.freq_base", 10000.0)}
    return {
        "vision_config": vision,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "spatial_merge_size": file.integer("spatial_merge_size", 1),
        "multimodal_projector_bias": file.has("mm.1.bias"),
    }


def prepare_pixtral(file: ProjectorFile) -> Values:
    return normalization(file) | {"size": {"longest_edge": file.integer("image_size")}}


def describe_unified(file: ProjectorFile) -> Values:
    """The side of a token, and the tables of positions, are as large as their tensors."""
    file.integer("image_size", 1)  # without effect: images keep their ratio
    vision = {
        "mm_embed_dim": file.hidden,
        "mm_posemb_size": file.shape("v.position_embd.weight")[-2],
        "output_proj_dims": file.hidden,
        "patch_size": file.integer("patch_size"),
        "pooling_kernel_size": _pooling(file),
        "rms_norm_eps": file.number("attention.layer_norm_epsilon"),
    }
    return {"vision_config": vision}


def _pooling(file: ProjectorFile) -> int:
    """Return the patches of a side of a token. Raises `ProjectorUnfit` if no whole number of them makes one."""
    patch, numbers = file.integer("patch_size"), file.shape(PATCH)[-1]
    pooling = math.isqrt(numbers // 3) // patch
    if 3 * (patch * pooling) ** 2 != numbers:
        raise file.unfit("patch_size", f"{patch} pixels do not divide a token of {numbers} numbers, as in {PATCH}")
    return pooling


def prepare_unified(file: ProjectorFile) -> Values:
    return normalization(file) | {
        "patch_size": file.integer("patch_size"),
        "pooling_kernel_size": _pooling(file),
        "do_normalize": False,
    }
