"""The tensors of towers under the names and in the layouts in which checkpoints are published."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from tests.checkpoints import quantize, write_safetensors
from tests.vision_checkpoints import make_vision_checkpoint
from workers.checkpoints.checkpoint import CheckpointError, open_weights
from workers.vision.tower import VisionTower, find_tower

pytestmark = pytest.mark.reference

Tensors = dict[str, NDArray[Any]]


def tower_of(path: Path) -> VisionTower:
    tower = find_tower(path)
    assert tower is not None
    return tower


def rewrite(path: Path, rename: Callable[[str], str], change: Callable[[str, NDArray[Any]], NDArray[Any]]) -> None:
    """Write the tensors of a checkpoint under other names."""
    file = path / "model.safetensors"
    write_safetensors(file, {rename(name): change(name, each) for name, each in load_file(file).items()})


def same(name: str, tensor: NDArray[Any]) -> NDArray[Any]:
    return tensor


def channels_last(name: str, tensor: NDArray[Any]) -> NDArray[Any]:
    """MLX's layout of convolutions."""
    return np.ascontiguousarray(np.moveaxis(tensor, 1, -1)) if "patch_" in name and tensor.ndim > 2 else tensor


def experts_as_modules(name: str, tensor: NDArray[Any]) -> NDArray[Any]:
    """Matrices [outputs, inputs] in stacks, as transformers 5 writes them."""
    return np.ascontiguousarray(tensor.swapaxes(1, 2)) if ".experts." in name else tensor


def renaming(names: Mapping[str, str]) -> Callable[[str], str]:
    def rename(name: str) -> str:
        start = next((start for start in names if name.startswith(start)), "")
        return names.get(start, "") + name.removeprefix(start)

    return rename


LLAVA = {"vision_tower.": "vision_tower.vision_model."}
LAYOUTS: Mapping[str, tuple[str, Mapping[str, str], Callable[[str, NDArray[Any]], NDArray[Any]]]] = {
    "gemma3-published": ("gemma3", LLAVA, same),
    "gemma3-in-memory": (
        "gemma3",
        {
            "vision_tower.": "model.vision_tower.",
            "multi_modal_projector.": "model.multi_modal_projector.",
            "language_model.model.": "model.language_model.",
        },
        same,
    ),
    "gemma3-mlx": ("gemma3", LLAVA, channels_last),
    "lfm2_vl-published": ("lfm2_vl", {"model.vision_tower.": "model.vision_tower.vision_model."}, same),
    "gemma4_unified-in-memory": (
        "gemma4_unified",
        {
            "model.vision_embedder.": "model.embed_vision.",
            "model.embed_vision.": "model.embed_vision.multimodal_embedder.",
        },
        same,
    ),
    "paddleocr_vl-in-memory": (
        "paddleocr_vl",
        {"mlp_AR.": "model.projector.", "visual.": "model.visual.", "model.": "model.language_model."},
        same,
    ),
    "pixtral-mlx": ("pixtral", LLAVA, channels_last),
    "qwen3_vl_moe-in-memory": ("qwen3_vl_moe", {}, experts_as_modules),
    "qwen2_5_vl-mlx": (
        "qwen2_5_vl",
        {"visual.": "vision_tower.", "model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
        channels_last,
    ),
    "smolvlm-mlx": (
        "smolvlm",
        {
            "model.vision_model.": "vision_model.",
            "model.connector.": "connector.",
            "model.text_model.": "language_model.model.",
            "lm_head.": "language_model.lm_head.",
        },
        channels_last,
    ),
}


@pytest.mark.parametrize("case", sorted(LAYOUTS))
def test_a_layout_has_the_same_parameters(tmp_path: Path, case: str) -> None:
    family, names, change = LAYOUTS[case]
    path = make_vision_checkpoint(tmp_path, family)
    expected, text = dict(tower_of(path).weights()), dict(open_weights(path))
    rewrite(path, renaming(names), change)
    found = tower_of(path).weights()
    assert set(found) == set(expected)
    for name, parameter in found.items():
        np.testing.assert_array_equal(parameter, expected[name])
    again = open_weights(path)
    assert set(again) == set(text)
    for name, parameter in again.items():
        np.testing.assert_array_equal(parameter, text[name])


def test_parameters_have_the_type_of_the_checkpoint(tmp_path: Path) -> None:
    weights = tower_of(make_vision_checkpoint(tmp_path, "qwen3_vl", dtype="bfloat16")).weights()
    assert {each.dtype for each in weights.values()} == {np.dtype(ml_dtypes.bfloat16)}


def test_a_quantized_matrix_is_dequantized(tmp_path: Path) -> None:
    path = make_vision_checkpoint(tmp_path, "qwen3_vl")
    matrix = tower_of(path).weights()["layers.1.up.weight"]
    tensors, module = load_file(path / "model.safetensors"), "model.visual.blocks.1.mlp.linear_fc1"
    parts = quantize(tensors.pop(f"{module}.weight"), 8, 32)
    tensors |= {f"{module}.{name}": part for name, part in zip(("weight", "scales", "biases"), parts, strict=True)}
    write_safetensors(path / "model.safetensors", tensors)
    fields = json.loads((path / "config.json").read_text())
    fields["quantization"] = {"group_size": 64, "bits": 4, module: {"group_size": 32, "bits": 8}}
    (path / "config.json").write_text(json.dumps(fields))
    weights = tower_of(path).weights()
    np.testing.assert_allclose(weights["layers.1.up.weight"], matrix, atol=0.01)
    assert not np.array_equal(weights["layers.1.up.weight"], matrix)


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    path = make_vision_checkpoint(tmp_path, "qwen3_vl", vision={"depth": 1, "deepstack_visual_indexes": []})
    fields = json.loads((path / "config.json").read_text())
    fields["vision_config"]["intermediate_size"] = 47
    (path / "config.json").write_text(json.dumps(fields))
    weights = tower_of(path).weights()
    words = r"mlp\.linear_fc1\.weight: has the shape \(48, 32\), the description says \(47, 32\)"
    with pytest.raises(CheckpointError, match=words):
        weights["layers.0.up.weight"]
