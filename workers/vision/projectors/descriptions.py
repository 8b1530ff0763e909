"""The fields of config.json and of preprocessor_config.json that the metadata of a projector means.

Keys are those of llama.cpp's converter, https://github.com/ggml-org/llama.cpp/tree/master/conversion. Numbers that no
file states are those that the families were published with.
"""

from typing import Any

from workers.vision.families.qwen import EPS as QWEN_EPS
from workers.vision.projectors.projector_file import ProjectorFile

Values = dict[str, Any]
QWEN2_PIXELS = (56 * 56, 28 * 28 * 16384)
"""The least and the most pixels of an image of Qwen2-VL and Qwen2.5-VL."""
QWEN3_PIXELS = (1 << 16, 1 << 24)
"""Those of Qwen3-VL and Qwen3.5."""
WINDOW = 112
"""Pixels of a side of the windows of Qwen2.5-VL."""
MAX_TAPS = 64


def tokens_side(file: ProjectorFile, default: int) -> int:
    """Read the patches of a side of the square of which one token is made."""
    return file.integer("projector.scale_factor", default)


def activation_of(file: ProjectorFile, default: str) -> str:
    """Read the activation of MLPs by transformers' name; files of some families state none."""
    for key, name in (("use_gelu", "gelu_pytorch_tanh"), ("use_silu", "silu")):
        if file.keys.get(key) is True:
            default = name
    return default


def sizes(file: ProjectorFile, activation: str) -> Values:
    """The sizes that all towers have, by the names of SigLIP's configuration."""
    return {
        "hidden_size": file.hidden,
        "num_hidden_layers": file.layers,
        "num_attention_heads": file.integer("attention.head_count"),
        "intermediate_size": file.mlp,
        "patch_size": file.integer("patch_size"),
        "hidden_act": activation_of(file, activation),
    }


def normalization(file: ProjectorFile) -> Values:
    """Means and standard deviations of pixels, where the file has them."""
    found = {f"image_{name}": file.get(f"image_{name}") for name in ("mean", "std")}
    return {name: value for name, value in found.items() if value is not None}


def _qwen(file: ProjectorFile, activation: str) -> Values:
    vision = sizes(file, activation)
    file.check_epsilon(QWEN_EPS)
    return vision | {
        "depth": vision["num_hidden_layers"],
        "num_heads": vision["num_attention_heads"],
        "out_hidden_size": file.integer("projection_dim"),
        "spatial_merge_size": file.integer("spatial_merge_size", 2),
        "temporal_patch_size": 2,
    }


def describe_qwen2(file: ProjectorFile) -> Values:
    vision = _qwen(file, "quick_gelu")
    # transformers truncates the product with the hidden size.
    ratio = (vision["intermediate_size"] + 0.5) / file.hidden
    outer = {"embed_dim": file.hidden, "hidden_size": vision["out_hidden_size"], "mlp_ratio": ratio}
    return {"vision_config": vision | outer}


def describe_qwen2_5(file: ProjectorFile) -> Values:
    period = file.integer("n_wa_pattern")
    vision = _qwen(file, "silu")
    vision["fullatt_block_indexes"] = [layer for layer in range(file.layers) if (layer + 1) % period == 0]
    vision["window_size"] = file.integer("window_size", WINDOW)
    return {"vision_config": vision}


def describe_qwen3(file: ProjectorFile) -> Values:
    vision = _qwen(file, "gelu_pytorch_tanh")
    vision["num_position_embeddings"] = file.shape("v.position_embd.weight")[0]
    vision["deepstack_visual_indexes"] = taps_of(file)
    return {"vision_config": vision}


def taps_of(file: ProjectorFile) -> list[int]:
    """Read the layers of the deep stack. Raises `ProjectorUnfit`."""
    key = "is_deepstack_layers"
    value = file.get(key) or []
    if not isinstance(value, list) or not all(isinstance(each, bool) for each in value) or len(value) > file.layers:
        raise file.unfit(key, f"is not true or false for each of {file.layers} layers")
    found = [layer for layer, taps in enumerate(value) if taps]
    if len(found) > MAX_TAPS:
        raise file.unfit(key, f"has {len(found)} layers, more than {MAX_TAPS}")
    return found


def prepare_qwen2(file: ProjectorFile) -> Values:
    return _qwen_pixels(file, QWEN2_PIXELS)


def prepare_qwen3(file: ProjectorFile) -> Values:
    return _qwen_pixels(file, QWEN3_PIXELS)


def _qwen_pixels(file: ProjectorFile, pixels: tuple[int, int]) -> Values:
    return normalization(file) | {
        "patch_size": file.integer("patch_size"),
        "merge_size": file.integer("spatial_merge_size", 2),
        "temporal_patch_size": 2,
        "min_pixels": file.integer("image_min_pixels", pixels[0]),
        "max_pixels": file.integer("image_max_pixels", pixels[1]),
    }


def _siglip(file: ProjectorFile) -> Values:
    vision = sizes(file, "gelu_pytorch_tanh")
    return vision | {"layer_norm_eps": file.number("attention.layer_norm_epsilon")}


def describe_gemma3(file: ProjectorFile) -> Values:
    image, patch = file.integer("image_size"), file.integer("patch_size")
    side = max(1, image // patch // tokens_side(file, 4))
    return {"vision_config": _siglip(file) | {"image_size": image}, "mm_tokens_per_image": side**2}


def prepare_gemma3(file: ProjectorFile) -> Values:
    side = file.integer("image_size")
    return normalization(file) | {"size": {"height": side, "width": side}}


def describe_idefics3(file: ProjectorFile) -> Values:
    image = file.integer("image_size")
    return {"vision_config": _siglip(file) | {"image_size": image}, "scale_factor": tokens_side(file, 2)}


def prepare_idefics3(file: ProjectorFile) -> Values:
    tile = file.integer("image_size")
    longest = file.integer("preproc_image_size", 4 * tile)
    return normalization(file) | {"size": {"longest_edge": longest}, "max_image_size": {"longest_edge": tile}}


def describe_lfm2(file: ProjectorFile) -> Values:
    file.integer("image_size")  # without effect: images keep their ratio
    return {
        "vision_config": _siglip(file) | {"num_patches": file.shape("v.position_embd.weight")[0]},
        "downsample_factor": tokens_side(file, 2),
        "projector_hidden_size": file.shape("mm.1.weight")[0],
        "projector_use_layernorm": file.has("mm.input_norm.weight"),
        "projector_bias": file.has("mm.1.bias"),
    }


def prepare_lfm2(file: ProjectorFile) -> Values:
    patch, merge = file.integer("patch_size"), tokens_side(file, 2)
    found = normalization(file) | {"encoder_patch_size": patch, "downsample_factor": merge}
    for key, name in (("min_pixels", "min_image_tokens"), ("max_pixels", "max_image_tokens")):
        if file.get(f"image_{key}") is not None:
            found[name] = file.integer(f"image_{key}") // (patch * merge) ** 2
    for key in ("min_tiles", "max_tiles"):
        if file.get(f"preproc_{key}") is not None:
            found[key] = file.integer(f"preproc_{key}")
    return found


def describe_gemma4(file: ProjectorFile) -> Values:
    """The tables of positions and the heads are as large as their tensors."""
    heads = file.integer("attention.head_count")
    file.integer("image_size", 1)  # without effect: images keep their ratio
    rows = file.shape("v.blk.0.attn_q.weight")[0]
    vision = sizes(file, "gelu_pytorch_tanh")
    vision |= {
        "hidden_activation": vision["hidden_act"],
        "num_key_value_heads": heads,
        "head_dim": file.integer("attention.head_dim", max(1, rows // heads)),
        "rms_norm_eps": file.number("attention.layer_norm_epsilon"),
        "pooling_kernel_size": tokens_side(file, 3),
        "position_embedding_size": file.shape("v.position_embd.weight")[-2],
        "use_clipped_linears": file.has("v.blk.0.attn_q.input_max"),
        "standardize": file.has("v.std_bias"),
    }
    return {"vision_config": vision}


def prepare_gemma4(file: ProjectorFile) -> Values:
    found = normalization(file)
    plain = found.get("image_mean", [0.0] * 3) == [0.0] * 3 and found.get("image_std", [1.0] * 3) == [1.0] * 3
    return found | {
        "patch_size": file.integer("patch_size"),
        "pooling_kernel_size": tokens_side(file, 3),
        "do_normalize": not plain,
    }
