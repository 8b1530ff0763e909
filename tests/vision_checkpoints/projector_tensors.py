"""The tensors of towers of CLIP, Pixtral and InternViT, and of Gemma 4 without a tower, in GGUF files: see
`projector_files`."""

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Tensors = Iterator[tuple[str, NDArray[Any]]]
OTHERS = ("gemma4_unified", "internvl", "llava", "mistral3", "pixtral")
"""The cases whose tensors are here."""
UNIFIED = {
    "patch_ln1": "v.patch_norm.1",
    "patch_ln2": "v.patch_norm.2",
    "pos_norm": "v.patch_norm.3",
    "patch_dense": "v.patch_embd",
    "pos_embedding": "v.position_embd.weight",
    "embedding_projection": "mm.input_projection",
}
"""The names of modules that the `gguf` package does not have yet."""
CLIP = (
    ("encoder.layers", "blk"),
    ("embeddings.", ""),
    ("_proj", ""),
    ("self_attn.", "attn_"),
    ("layer_norm", "ln"),
    ("mlp.fc1", "ffn_down"),
    ("mlp.fc2", "ffn_up"),
    ("embedding", "embd"),
    ("layrnorm", "ln"),
)
"""The names of llama.cpp's older converter, which exchanges the matrices of MLPs."""


def other_tensors(family: str, config: Mapping[str, Any], name: str, values: NDArray[Any]) -> Tensors:
    """Yield what becomes of a tensor of one of `OTHERS`; nothing of one of the language model."""
    name = name.removeprefix("model.")
    if name.endswith("embed_tokens.weight") and family in ("pixtral", "mistral3"):
        yield "v.token_embd.img_break", values[7]
    if "language_model." in name or not name.startswith(("vis", "multi_modal", "embed_vision")):
        return
    yield from {"gemma4_unified": _unified, "internvl": _internvl, "llava": _clip}.get(family, _pixtral)(
        config, name, values
    )


def _unified(config: Mapping[str, Any], name: str, values: NDArray[Any]) -> Tensors:
    stored, end = next((UNIFIED[part], name.rpartition(".")[2]) for part in UNIFIED if part in name)
    if "pos_embedding" in name:
        yield stored, values.transpose(1, 0, 2)
        return
    if "patch_dense.weight" in name or "patch_ln1" in name:
        side = config["vision_config"]["patch_size"] * config["vision_config"]["pooling_kernel_size"]
        position = np.arange(3 * side**2)
        channel, row, column = position // side**2, position % side**2 // side, position % side
        values = values[..., row * side * 3 + column * 3 + channel]
    yield f"{stored}.{end}", values


def _internvl(config: Mapping[str, Any], name: str, values: NDArray[Any]) -> Tensors:
    modules = {"layer_norm": "mlp1.0", "linear_1": "mlp1.1", "linear_2": "mlp1.3"}
    if name.startswith("multi_modal"):
        _, module, end = name.split(".")
        yield name_in_file(f"{modules[module]}.{end}"), values
        return
    plain = (".lambda_1", ".lambda_2", "position_embeddings")
    yield name_in_file(f"model.{name}{'.weight' * name.endswith(plain)}"), values


def _clip(config: Mapping[str, Any], name: str, values: NDArray[Any]) -> Tensors:
    if name.startswith("multi_modal"):
        _, module, end = name.split(".")
        yield f"mm.{ {'linear_1': 0, 'linear_2': 2}[module] }.{end}", values
        return
    layers = config["vision_config"]["num_hidden_layers"] + 1 + config["vision_feature_layer"]
    layer = re.search(r"layers\.(\d+)\.", name)
    if "post_layernorm" in name or (layer is not None and int(layer[1]) >= layers):
        return
    name = name.removeprefix("vision_tower.").removeprefix("vision_model.")
    for part, stored in CLIP:
        name = name.replace(part, stored)
    yield f"v.{name}", values


def _pixtral(config: Mapping[str, Any], name: str, values: NDArray[Any]) -> Tensors:
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = config["vision_config"]["num_attention_heads"]
        values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
    yield name_in_file(name), values


@functools.cache
def _table() -> gguf.TensorNameMap:
    return gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 8)


def name_in_file(name: str) -> str:
    """Return the name in the file, by the table of the `gguf` package."""
    names = _table()
    ends = (".weight", ".bias", ".input_max", ".input_min", ".output_max", ".output_min")
    for each in (name, name.removeprefix("model."), f"model.{name}"):
        if (found := names.get_name(each, try_suffixes=ends)) is not None:
            return str(found)
    raise AssertionError(name)
