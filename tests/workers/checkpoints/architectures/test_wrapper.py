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
from tests.workers.checkpoints.low_bits.low_bit_files import to_low_bits
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
        (
            {"text_config": GEMMA_3_4B["text_config"] | {"model_type": "gemma4_text"}},
            "text_config.model_type: 'gemma4_text' is not supported in this class, only 'gemma3_text'",
        ),
        ({"architectures": ["Idefics2ForConditionalGeneration"]}, "architectures: .* only one of .*Gemma3ForCond"),
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


MISTRAL_TEXT = {
    "head_dim": 128,
    "hidden_size": 3072,
    "intermediate_size": 9216,
    "max_position_embeddings": 262144,
    "num_attention_heads": 32,
    "num_hidden_layers": 26,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "vocab_size": 131072,
}
MINISTRAL_3_3B: dict[str, Any] = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "dtype": "bfloat16",
    "image_token_index": 10,
    "model_type": "mistral3",
    "quantization_config": {
        "activation_scheme": "static",
        "dequantize": False,
        "modules_to_not_convert": ["model.vision_tower", "model.multi_modal_projector", "lm_head"],
        "quant_method": "fp8",
        "weight_block_size": None,
    },
    "text_config": MISTRAL_TEXT
    | {
        "model_type": "ministral3",
        "rope_parameters": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 16.0,
            "llama_4_scaling_beta": 0.1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 16384,
            "rope_theta": 1000000.0,
            "rope_type": "yarn",
            "type": "yarn",
        },
        "sliding_window": None,
        "tie_word_embeddings": True,
    },
    "vision_config": {"hidden_size": 1024, "model_type": "pixtral"},
}
QWEN_2_5_VL_3B: dict[str, Any] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "vision_start_token_id": 151652,
    "image_token_id": 151655,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "max_position_embeddings": 128000,
    "max_window_layers": 70,
    "model_type": "qwen2_5_vl",
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vision_config": {"depth": 32, "hidden_size": 1280},
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vocab_size": 151936,
}
"""As on the hub, from memory."""


def test_text_models_of_one_class(tmp_path: Path) -> None:
    """`model_type` of `text_config` decides on the family, and Qwen2.5-VL has no `text_config`."""
    config = read(tmp_path, MINISTRAL_3_3B)
    assert (config.family, config.layers, config.tie_embeddings, config.max_positions) == (
        "ministral3",
        26,
        True,
        16384,
    )
    small = {"text_config": MISTRAL_TEXT | {"rope_theta": 1e9, "sliding_window": None}, "quantization_config": ...}
    config = read(tmp_path, MINISTRAL_3_3B, **small)  # Mistral Small 3.1
    assert (config.family, config.ropes, config.tie_embeddings) == ("mistral", (Rope(1e9, 128),), False)
    config = read(tmp_path, QWEN_2_5_VL_3B)
    assert (config.family, config.ropes, config.qkv_bias, config.o_bias) == ("qwen2", (Rope(1e6, 128),), True, False)
    assert (config.tie_embeddings, config.max_positions, config.dtype) == (True, 128000, "bfloat16")
    with pytest.raises(CheckpointError, match=r"json: rope_scaling\.rope_type: 'dynamic' is not supported"):
        read(tmp_path, QWEN_2_5_VL_3B, rope_scaling={"type": "dynamic", "mrope_section": [16, 24, 24]})


def test_ministral_3_in_fp8(tmp_path: Path) -> None:
    """With scales of matrices and activations, and parts around it that are not quantized."""
    plain = make_checkpoint(tmp_path / "plain", "ministral3", tied=False)
    scale = "language_model.model.layers.1.mlp.up_proj.activation_scale"
    others = {scale: np.ones((), np.float32), "vision_tower.a": np.zeros(1, np.float32)}
    _, expected = to_low_bits(plain, "fp8-tensor", "language_model.", others)
    fields = json.loads((plain / "config.json").read_text())
    quantization = fields.pop("quantization_config") | {"activation_scheme": "static"}
    outer = {"architectures": ["Mistral3ForConditionalGeneration"], "quantization_config": quantization}
    (plain / "config.json").write_text(json.dumps(outer | {"text_config": fields}))
    config, weights = ModelConfig.from_dir(plain), open_weights(plain)
    assert config.family == "ministral3"
    check_tensors(weights, config, plain)
    name = "model.layers.1.mlp.up_proj.weight"
    assert weights.format(name) is not None
    np.testing.assert_allclose(weights[name], expected[name], atol=0.02)
