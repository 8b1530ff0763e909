"""Every tensor of a checkpoint is read, or the checkpoint is refused."""

import contextlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.checkpoints import make_checkpoint, write_safetensors
from tests.families import ARCHITECTURES
from tests.quantized import requantize
from workers.checkpoints.architectures.tensors import check_tensors, parameter_count
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig, open_weights


@pytest.mark.parametrize(
    ("family", "options"),
    [
        *((family, {}) for family in ARCHITECTURES),
        ("llama", {"tied": False, "sharded": True}),
        ("olmo2", {"attention_bias": True}),
        ("qwen3", {"quantized_bits": 4}),
        ("qwen3_moe", {"quantized_bits": 4}),
        ("mixtral", {"quantized_bits": 8}),
    ],
)
def test_every_tensor_of_a_family_is_known(tmp_path: Path, family: str, options: dict[str, Any]) -> None:
    path = make_checkpoint(tmp_path, family, **options)
    config = ModelConfig.from_dir(path)
    derived = (f"{config.names.layers}1.{name}" for name in config.names.derived)
    check_tensors([*open_weights(path), *derived, f"{config.names.head}.weight"], config, path)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("llama", "model.layers.0.self_attn.q_norm.weight"),
        ("phi3", "model.layers.0.self_attn.q_proj.weight"),
        ("olmo2", "model.layers.0.input_layernorm.weight"),
        ("mixtral", "model.layers.0.block_sparse_moe.experts.4.w1.weight"),
        ("qwen3_moe", "model.layers.0.mlp.gate_proj.weight"),
        ("llama", "model.layers.0.self_attn.q_proj.bias"),
        ("qwen2", "model.layers.0.self_attn.o_proj.bias"),
        ("llama", "model.layers.1.mlp.up_proj.bias"),
        ("llama", "model.layers.2.input_layernorm.weight"),
        ("mistral", "model.layers.0.block_sparse_moe.gate.weight"),
        ("llama", "model.layers.0.self_attn.q_proj.lora_A.weight"),
        ("qwen3", "model.layers.01.input_layernorm.weight"),
        ("llama", "lm_head.bias"),
        ("mimo", "model.mtp_layers.1.input_proj.weight"),
        ("qwen2", "model.mtp_layers.0.input_proj.weight"),
        ("cohere", "model.layers.0.input_layernorm.bias"),
        ("gpt_neox", "gpt_neox.layers.2.attention.bias"),
        ("olmo", "model.norm.weight"),
    ],
)
def test_an_unknown_tensor_is_refused(tmp_path: Path, family: str, name: str) -> None:
    path = make_checkpoint(tmp_path, family)
    with pytest.raises(CheckpointError, match="not part of") as refused:
        check_tensors([*open_weights(path), name], ModelConfig.from_dir(path), path)
    assert refused.value.field == name


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_biases_of_zeros_beside_quantized_matrices(tmp_path: Path, method: Literal["gptq", "awq"]) -> None:
    """AutoGPTQ writes a bias for each matrix, also of models without biases."""
    path = requantize(make_checkpoint(tmp_path), method)
    config, name = ModelConfig.from_dir(path), "model.layers.1.mlp.up_proj.bias"
    tensors = load_file(path / "model.safetensors")
    for last, accepted in ((0, True), (1, False)):
        bias = np.zeros(128, np.float16)
        bias[-1] = last
        write_safetensors(path / "model.safetensors", tensors | {name: bias})
        weights = open_weights(path)
        assert weights.adds_nothing(name) == accepted
        with contextlib.nullcontext() if accepted else pytest.raises(CheckpointError, match=f"{name}: .*not part of"):
            check_tensors(weights, config, path, weights.adds_nothing)
    assert not weights.adds_nothing("model.norm.bias")


def test_the_parameters_of_a_model(tmp_path: Path) -> None:
    """A tied matrix is read twice: as embedding and as head."""
    path = make_checkpoint(tmp_path / "model", "llama", tied=True)
    config = ModelConfig.from_dir(path)
    stored = sum(array.size for array in open_weights(path).values())
    assert parameter_count(config) == stored + config.vocab_size * config.hidden_size
