"""Configurations and tensors of GGUF files, beside those of the checkpoints that they were made from."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoints import LLAMA3_SCALING, make_checkpoint
from tests.workers.checkpoints.gguf.gguf_files import make_gguf
from workers.checkpoints.architectures.tensors import check_tensors
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig, config_digest, open_weights, same_text

GPT_OSS = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "truncate": False}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.5] * 4, "long_factor": [2.0, 3.5] * 4}
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "gemma": {},
    # What no file states follows from llama.cpp's rules.
    "gemma2": {"fields": {"query_pre_attn_scalar": 16}},
    "gemma3_text": {"fields": {"query_pre_attn_scalar": 16}, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    "gpt_oss": {"tied": False, "rope_scaling": GPT_OSS},
    "granite": {"attention_bias": True},
    "llama": {"tied": False, "attention_bias": True},
    "mistral": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}},
    "mixtral": {"tied": False},
    "olmo2": {"tied": False},
    "olmo3": {},
    "phi3": {"rope_scaling": LONG, "fields": {"sliding_window": 24}},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "qwen3_moe": {"fields": {"norm_topk_prob": True}},
    "seed_oss": {"tied": False},
    "smollm3": {"layers": 4, "fields": {"no_rope_layers": [1, 1, 1, 0]}},
}
"""Arguments of the checkpoint of each family."""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_is_the_checkpoint_that_it_was_made_from(tmp_path: Path, family: str) -> None:
    path = make_checkpoint(tmp_path / "model", family, **FAMILIES[family])
    file = make_gguf(path, tmp_path / "model.gguf")
    made, expected = ModelConfig.from_dir(file), ModelConfig.from_dir(path)
    if family == "mistral":  # one architecture with Llama
        expected = replace(expected, family="llama")
    assert made == expected
    weights, original = open_weights(file), open_weights(path)
    assert set(weights) == set(original)
    check_tensors(weights, made, file, weights.adds_nothing)
    for name, tensor in original.items():
        # The offset of a norm was added and is taken away again.
        np.testing.assert_allclose(weights[name], tensor, atol=2e-7 if made.norm_offset else 0, rtol=0, err_msg=name)
    assert same_text(path, file)


def test_the_divisors_of_llama_3(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model", rope_scaling=LLAMA3_SCALING)
    made = ModelConfig.from_dir(make_gguf(path, tmp_path / "model.gguf")).ropes[0]
    for context in (16, 4096):
        expected, factor = ModelConfig.from_dir(path).ropes[0].frequencies(context)
        frequencies, own = made.frequencies(context)
        np.testing.assert_allclose(frequencies, expected, rtol=2e-7)  # they are in the file in float32
        assert factor == own == 1.0


@pytest.mark.parametrize(("layers", "scalar"), [(46, 16.0), (2, 8.0)], ids=["27b", "smaller"])
def test_the_attention_scale_of_large_gemmas(tmp_path: Path, layers: int, scalar: float) -> None:
    path = make_checkpoint(tmp_path / "model", "gemma2", head_dim=8)
    config = ModelConfig.from_dir(make_gguf(path, tmp_path / "model.gguf", metadata={"gemma2.block_count": layers}))
    assert config.attention_scale == pytest.approx(scalar**-0.5)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("plain") / "model")


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("general.architecture", "qwen2moe", "'qwen2moe' is not supported, only llama, qwen2, qwen3,"),
        ("llama.block_count", None, "is missing"),
        ("llama.block_count", 1.5, "1.5 is not an integer from 1"),
        ("llama.attention.head_count", 0, "0 is not an integer from 1"),
        ("llama.attention.value_length", 32, "is not attention.key_length, 16"),
        ("llama.attention.clamp_kqv", 8.0, "8.0 is not supported for this architecture"),
        ("llama.rope.freq_base", -1.0, "-1.0 is not a number from"),
        ("llama.rope.scaling.type", "su", "'su' is not supported, only 'none', 'linear', 'yarn', 'longrope'"),
        ("llama.attention.layer_norm_rms_epsilon", None, "is missing"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_refused_by_its_key(
    checkpoint: Path, tmp_path: Path, key: str, value: object, problem: str
) -> None:
    file = make_gguf(checkpoint, tmp_path / "model.gguf", metadata={key: value})
    with pytest.raises(CheckpointError) as refused:
        ModelConfig.from_dir(file)
    assert str(refused.value).startswith(f"{file}: {key}: {problem}")


def test_the_digest_covers_all_that_decides_the_tokens(checkpoint: Path, tmp_path: Path) -> None:
    file = make_gguf(checkpoint, tmp_path / "model.gguf")
    first = config_digest(file)
    make_gguf(checkpoint, file, metadata={"tokenizer.chat_template": "other"})
    assert config_digest(file) != first
    other = make_checkpoint(tmp_path / "other", seed=1)
    assert config_digest(make_gguf(other, file)) != first
