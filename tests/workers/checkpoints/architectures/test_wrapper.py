"""The language model of a multimodal model is read as a model of its own."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.checkpoints import make_checkpoint, write_safetensors
from tests.workers.checkpoints.architectures.configs import read
from workers.checkpoints.architectures.rope import Linear, Rope
from workers.checkpoints.architectures.tensors import check_tensors
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig, open_weights

GEMMA_3_4B: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "boi_token_index": 255999,
    "eoi_token_index": 256000,
    "eos_token_id": [1, 106],
    "image_token_index": 262144,
    "initializer_range": 0.02,
    "mm_tokens_per_image": 256,
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "transformers_version": "4.50.0.dev0",
    "vision_config": {"hidden_size": 1152, "image_size": 896, "model_type": "siglip_vision_model"},
}
"""As on the hub, from memory."""


def test_gemma_3_4b_as_published(tmp_path: Path) -> None:
    config = read(tmp_path, GEMMA_3_4B)
    assert (config.family, config.layers, config.hidden_size, config.ffn) == ("gemma3_text", 34, 2560, 10240)
    assert (config.heads, config.kv_heads, config.head_dim, config.vocab_size) == (8, 4, 256, 262208)
    assert config.ropes == (Rope(1e6, 256, Linear(8.0)), Rope(1e4, 256))
    assert [layer.window for layer in config.plan[:7]] == [1024] * 5 + [None, 1024]
    assert (config.dtype, config.tie_embeddings, config.max_positions) == ("bfloat16", True, 131072)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"text_config": ...}, "text_config: is missing"),
        ({"text_config": []}, "text_config: is not an object"),
        (
            {"text_config": GEMMA_3_4B["text_config"] | {"mlp_bias": True}},
            "text_config.mlp_bias: True is not supported",
        ),
        ({"architectures": ["LlavaForConditionalGeneration"]}, "architectures: .* only one of .*Gemma3ForCond"),
        ({"architectures": [["Gemma3ForConditionalGeneration"]]}, "architectures: .*not supported"),
    ],
)
def test_refused_by_name(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read(tmp_path, GEMMA_3_4B, **changes)


@pytest.mark.parametrize("layout", ["published", "in memory"])
@pytest.mark.parametrize("bits", [None, 4])
def test_tensors_are_named_as_without_it(tmp_path: Path, bits: Any, layout: str) -> None:
    plain = make_checkpoint(tmp_path / "plain", "gemma3_text", quantized_bits=bits)
    wrapped = wrap(plain, tmp_path / "wrapped", layout)
    weights, expected = open_weights(wrapped), open_weights(plain)
    config = ModelConfig.from_dir(wrapped)
    assert config == replace(ModelConfig.from_dir(plain), quantization=config.quantization)
    check_tensors(weights, config, wrapped)
    assert list(weights) == list(expected)
    name = "model.layers.1.mlp.up_proj.weight"
    assert weights.format(name) == expected.format(name)
    np.testing.assert_array_equal(weights[name], expected[name])


def test_a_tensor_of_an_unknown_part_is_refused(tmp_path: Path) -> None:
    path = wrap(make_checkpoint(tmp_path / "plain", "gemma3_text"), tmp_path / "wrapped")
    tensors = load_file(path / "model.safetensors")
    write_safetensors(path / "model.safetensors", tensors | {"audio_tower.a": np.zeros(1, np.float32)})
    with pytest.raises(CheckpointError, match=r"audio_tower\.a: the tensor is neither of the language model"):
        open_weights(path)


def test_a_tensor_that_is_there_under_both_names_is_refused(tmp_path: Path) -> None:
    path = wrap(make_checkpoint(tmp_path / "plain", "gemma3_text"), tmp_path / "wrapped")
    tensors = load_file(path / "model.safetensors")
    twice = {"model.language_model.norm.weight": tensors["language_model.model.norm.weight"]}
    write_safetensors(path / "model.safetensors", tensors | twice)
    with pytest.raises(CheckpointError, match=r"norm\.weight: is there as .*norm\.weight, too"):
        open_weights(path)


def wrap(plain: Path, target: Path, layout: str = "published") -> Path:
    """Wrap a checkpoint as the language model of a multimodal one; modules with other bits are listed by name."""
    target.mkdir()
    text = json.loads((plain / "config.json").read_text())
    outside = {name: text.pop(name) for name in ("torch_dtype", "quantization") if name in text}
    if "quantization" in outside:
        outside["quantization"][_wrapped("model.embed_tokens", layout)] = {"group_size": 32, "bits": 4}
        del text["quantization_config"]
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": text}
    (target / "config.json").write_text(json.dumps(outer | outside))
    tensors = load_file(plain / "model.safetensors")
    prefix = "" if layout == "published" else "model."
    around = {prefix + name: np.zeros(1, np.float32) for name in ("vision_tower.a", "multi_modal_projector.b")}
    inside = {_wrapped(name, layout): value for name, value in tensors.items()}
    write_safetensors(target / "model.safetensors", inside | around)
    return target


def _wrapped(name: str, layout: str) -> str:
    if layout == "published":
        return f"language_model.{name}"
    return name if name.startswith("lm_head.") else f"model.language_model.{name.removeprefix('model.')}"
