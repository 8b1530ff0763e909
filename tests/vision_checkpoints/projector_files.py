"""The language model and the vision tower of a multimodal checkpoint as two GGUF files, by the rules of llama.cpp's
converter.

Written from https://github.com/ggml-org/llama.cpp/tree/master/conversion with the `gguf` package's own table of names,
not from `workers.vision.projectors`, which is tested with it.
"""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from tests.vision_checkpoints.families import VISION_FAMILIES
from tests.vision_checkpoints.projector_tensors import OTHERS, name_in_file, other_tensors
from tests.workers.checkpoints.gguf.gguf_files import make_gguf, write_gguf
from workers.checkpoints.architectures.wrapper import unwrap
from workers.checkpoints.checkpoint import open_weights
from workers.checkpoints.documents import read_fields

Tensors = Iterator[tuple[str, NDArray[Any]]]
KINDS = {
    "gemma3": "gemma3",
    "gemma4": "gemma4v",
    "gemma4_unified": "gemma4uv",
    "internvl": "internvl",
    "lfm2_vl": "lfm2",
    "llava": "mlp",
    "mistral3": "pixtral",
    "pixtral": "pixtral",
    "qwen2_5_vl": "qwen2.5vl_merger",
    "qwen2_vl": "qwen2vl_merger",
    "qwen3_5": "qwen3vl_merger",
    "qwen3_vl": "qwen3vl_merger",
    "qwen3_vl_moe": "qwen3vl_merger",
    "smolvlm": "idefics3",
}
TEXT = {
    "mistral3": gguf.MODEL_ARCH.MISTRAL3,
    "qwen2_vl": gguf.MODEL_ARCH.QWEN2VL,
    "qwen2_5_vl": gguf.MODEL_ARCH.QWEN2VL,
    "qwen3_vl": gguf.MODEL_ARCH.QWEN3VL,
    "qwen3_vl_moe": gguf.MODEL_ARCH.QWEN3VLMOE,
}
"""Architectures of language models that have another name in multimodal models."""
PUBLISHED: Mapping[str, dict[str, Any]] = {
    "gemma4": {"preprocessor": {"max_soft_tokens": 280}, "vision": {"position_embedding_size": 1024}},
    "gemma4_unified": {"preprocessor": {"max_soft_tokens": 280}, "vision": {"mm_posemb_size": 512}},
    "internvl": {"preprocessor": {"max_patches": 12}},
    "lfm2_vl": {
        "preprocessor": {
            "encoder_patch_size": 16,
            "tile_size": 512,
            "min_image_tokens": 64,
            "max_image_tokens": 256,
            "max_tiles": 10,
        },
        "vision": {"num_hidden_layers": 3, "patch_size": 16},
    },
    "llava": {"preprocessor": {"do_pad": True}},
    "qwen2_5_vl": {"vision": {"window_size": 112}, "preprocessor": {"min_pixels": 3136, "max_pixels": 12845056}},
    "qwen2_vl": {"vision": {"depth": 3}, "preprocessor": {"min_pixels": 3136, "max_pixels": 12845056}},
    "qwen3_5": {"preprocessor": {"size": {"longest_edge": 1 << 24, "shortest_edge": 1 << 16}}},
    "qwen3_vl": {"preprocessor": {"size": {"longest_edge": 1 << 24, "shortest_edge": 1 << 16}}},
    "qwen3_vl_moe": {"preprocessor": {"size": {"longest_edge": 1 << 24, "shortest_edge": 1 << 16}}},
}
"""Settings of checkpoints that no projector states, as the families are published with them."""


def make_projected(
    checkpoint: Path, folder: Path, kind: Type = Type.F32, *, metadata: Mapping[str, Any] | None = None
) -> Path:
    """Write `model.gguf` and `mmproj-model.gguf` of a checkpoint into `folder`, with matrices of the tower of `kind`,
    and return the former. `metadata` replaces keys of the latter."""
    make_language_model(checkpoint, folder / "model.gguf")
    make_projector(checkpoint, folder / "mmproj-model.gguf", kind, metadata=metadata)
    return folder / "model.gguf"


def make_language_model(checkpoint: Path, file: Path, *, metadata: Mapping[str, Any] | None = None) -> None:
    """Write the language model of a multimodal checkpoint as a GGUF file. `metadata` replaces keys."""
    outer = json.loads((checkpoint / "config.json").read_text())
    fields, _ = unwrap(read_fields(checkpoint))
    family = case_of(outer)
    flat = file.with_name(f"{file.stem}-text")
    shutil.copytree(checkpoint, flat, ignore=shutil.ignore_patterns("*.safetensors*"))
    config = {**VISION_FAMILIES[family].text, **fields.values, **_rotary(fields.values)}
    if family == "gemma4_unified":  # whose language model is Gemma 4's
        config |= {"model_type": "gemma4_text", "hidden_size_per_layer_input": 0}
    (flat / "config.json").write_text(json.dumps(config))
    tokens = json.loads((flat / "tokenizer_config.json").read_text())
    tokens["chat_template"] = (checkpoint / "chat_template.jinja").read_text()
    (flat / "tokenizer_config.json").write_text(json.dumps(tokens))
    save_file(
        {name: np.ascontiguousarray(each) for name, each in open_weights(checkpoint).items()},
        flat / "model.safetensors",
    )
    plan = outer["text_config"].get("rope_parameters") or {}
    more: dict[str, Any] = {}
    if (sections := plan.get("mrope_section")) is not None:
        more["rope.dimension_sections"] = [*sections, 0]
    if family in ("qwen3_vl", "qwen3_vl_moe"):
        more["n_deepstack_layers"] = len(outer["vision_config"]["deepstack_visual_indexes"])
    make_gguf(flat, file, metadata=metadata, architecture=TEXT.get(family), keys=more)
    shutil.rmtree(flat)


def case_of(config: Mapping[str, Any]) -> str:
    """Return the name of a checkpoint's case by its config.json."""
    towers = {"clip_vision_model": "llava", "pixtral": "pixtral"}
    family = str(config["model_type"])
    return towers[config["vision_config"]["model_type"]] if family == "llava" else family


def _rotary(text: Mapping[str, Any]) -> dict[str, Any]:
    """The base of positions as earlier versions of transformers have it."""
    plan = text.get("rope_parameters") or {}
    if "full_attention" in plan:
        return {
            "rope_theta": plan["full_attention"]["rope_theta"],
            "rope_local_base_freq": plan["sliding_attention"]["rope_theta"],
        }
    part = {"partial_rotary_factor": plan["partial_rotary_factor"]} if "partial_rotary_factor" in plan else {}
    return {"rope_theta": plan["rope_theta"], **part}


def make_projector(
    checkpoint: Path,
    file: Path,
    kind: Type = Type.F32,
    *,
    metadata: Mapping[str, Any] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> None:
    """Write the vision tower of a multimodal checkpoint as a GGUF file. `metadata` replaces keys, and `renamed` parts
    of the names of tensors."""
    config = json.loads((checkpoint / "config.json").read_text())
    keys = {
        "general.architecture": "clip",
        **{f"clip.{key}": value for key, value in _keys(checkpoint, config).items()},
    }
    stored = load_file(checkpoint / "model.safetensors")
    tensors = dict(part for name, each in stored.items() for part in _tensors(config, name, each.astype(np.float32)))
    tensors = {_renamed(name, renamed or {}): each for name, each in tensors.items()}
    plain = ("v.position_embd", "v.patch_embd")
    write_gguf(
        file,
        keys | dict(metadata or {}),
        tensors,
        lambda name: Type.F32 if name.startswith(plain) else kind,
    )


def _renamed(name: str, parts: Mapping[str, str]) -> str:
    part = next((part for part in parts if part in name), "")
    return name.replace(part, parts[part]) if part else name


def _keys(checkpoint: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    vision, family = config["vision_config"], case_of(config)
    preprocessor = json.loads((checkpoint / "preprocessor_config.json").read_text())
    if family == "gemma4_unified":  # without a tower
        vision = dict.fromkeys(("num_hidden_layers", "num_attention_heads", "intermediate_size"), 0) | vision
        vision["hidden_size"] = vision["mm_embed_dim"]
    hidden = vision.get("embed_dim", vision["hidden_size"])
    found: dict[str, Any] = {
        "has_vision_encoder": True,
        "projector_type": KINDS[family],
        "vision.projection_dim": config["text_config"]["hidden_size"],
        "vision.image_size": _side(vision.get("image_size", 224)),
        "vision.patch_size": _side(vision["patch_size"]),
        "vision.embedding_length": hidden,
        "vision.feed_forward_length": vision.get("intermediate_size", vision["hidden_size"]),  # wrong in Qwen2-VL
        "vision.block_count": vision.get("depth") or vision["num_hidden_layers"],
        "vision.attention.head_count": vision.get("num_heads") or vision["num_attention_heads"],
        "vision.attention.layer_norm_epsilon": vision.get("layer_norm_eps", 1e-6),
        "vision.image_mean": preprocessor["image_mean"],
        "vision.image_std": preprocessor["image_std"],
    }
    match family:
        case "gemma4_unified":
            return found | {"vision.projector_type": found.pop("projector_type"), "has_audio_encoder": True}
        case "internvl":
            scale = int(1 / config["downsample_ratio"])
            tiles = {f"vision.preproc_{end}_tiles": preprocessor[f"{end}_patches"] for end in ("min", "max")}
            return found | {"use_gelu": True, "vision.projector.scale_factor": scale} | tiles
        case "llava":
            # The projection of the whole CLIP model, and the layers that are computed.
            layers = vision["num_hidden_layers"] + 1 + config["vision_feature_layer"]
            more = {"vision.projection_dim": vision["projection_dim"], "vision.block_count": layers}
            return found | {"has_llava_projector": True, "use_gelu": vision["hidden_act"] == "gelu"} | more
        case "pixtral" | "mistral3":
            more = {"vision.attention.layer_norm_epsilon": 1e-5, f"use_{vision['hidden_act']}": True}
            merge = config.get("spatial_merge_size")
            return found | more | ({} if merge is None else {"vision.spatial_merge_size": merge})
        case "qwen2_5_vl":
            full = vision["fullatt_block_indexes"]
            return found | {"use_silu": True, "vision.n_wa_pattern": full[0] + 1}
        case "qwen3_vl" | "qwen3_vl_moe" | "qwen3_5":
            taps = vision.get("deepstack_visual_indexes", [])
            flags = [layer in taps for layer in range(vision["depth"])]
            return found | {"use_gelu": True, "vision.spatial_merge_size": 2, "vision.is_deepstack_layers": flags}
        case "gemma3":
            side = vision["image_size"] // vision["patch_size"] // int(config["mm_tokens_per_image"] ** 0.5)
            return found | {"use_gelu": True, "vision.projector.scale_factor": side}
        case "lfm2_vl":
            return found | {"use_gelu": True, "vision.projector.scale_factor": config["downsample_factor"]}
        case "smolvlm":
            longest = preprocessor["size"]["longest_edge"]
            more = {"vision.projector.scale_factor": config["scale_factor"], "vision.preproc_image_size": longest}
            return found | {"use_gelu": True} | more
    return found


def _side(value: Any) -> int:
    return int(value[0] if isinstance(value, list) else value)


def _tensors(config: Mapping[str, Any], name: str, values: NDArray[Any]) -> Tensors:
    """Yield what becomes of a tensor of the checkpoint; nothing of one of the language model."""
    family, vision = case_of(config), config["vision_config"]
    if family in OTHERS:
        yield from other_tensors(family, config, name, values)
        return
    name = name.removeprefix("model.")
    if "language_model." in name or not name.startswith(("vis", "multi_modal", "connector", "embed_vision")):
        return
    if name == "visual.patch_embed.proj.weight":
        yield "v.patch_embd.weight", values[:, :, 0]
        yield "v.patch_embd.weight.1", values[:, :, 1]
        return
    if ".qkv." in name and family.startswith("qwen2"):
        for part, each in zip("qkv", np.split(values, 3), strict=True):
            yield name_in_file(name.replace("qkv", part)), each
        return
    if family.startswith("qwen3") and "merger" in name:
        yield _of_merger(name, vision.get("deepstack_visual_indexes", [])), values
        return
    if family in ("gemma3", "lfm2_vl") and name.startswith("vision_tower.") and "vision_model" not in name:
        name = name.replace("vision_tower.", "vision_tower.vision_model.")  # as published
    if family == "gemma3":
        name = name.replace("_weight", ".weight")
        values = values + 1 if "soft_emb_norm" in name else values
    if name.endswith("input_proj.weight") or (family == "lfm2_vl" and "patch_embedding.weight" in name):
        side = vision["patch_size"]
        values = values.reshape(len(values), side, side, 3).transpose(0, 3, 1, 2)
    if family == "gemma4":
        name = name.replace("vision_tower.encoder.", "vision_model.model.").replace(".linear.weight", ".weight")
        name += ".weight" * name.endswith("position_embedding_table")
    yield (
        name_in_file(name if name.startswith(("visual", "multi", "vision_model")) else f"model.{name}"),
        np.atleast_1d(values),
    )


def _of_merger(name: str, taps: list[int]) -> str:
    *_, module, end = name.split(".")
    if "deepstack" in name:
        tap = int(re.findall(r"\d+", name)[0])
        return f"v.deepstack.{taps[tap]}.{module.replace('linear_', '')}.{end}"
    return f"{ {'norm': 'v.post_ln', 'linear_fc1': 'mm.0', 'linear_fc2': 'mm.2'}[module] }.{end}"
