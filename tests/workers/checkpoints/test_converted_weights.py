"""Checkpoints of hybrid models as mlx-lm's converter writes them, beside the originals."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.checkpoints import make_checkpoint, stack_experts, write_safetensors
from tests.reference.layers.mamba_layers import NEMOTRON_LATENTS
from workers.checkpoints.checkpoint import CheckpointError, open_weights
from workers.checkpoints.mlx_files.converted_weights import ConvertedWeights
from workers.checkpoints.quantization_config import Quantization

MLP = {"1": "gate_proj", "2": "down_proj", "3": "up_proj"}
CENTRED = ("input_layernorm.weight", "post_attention_layernorm.weight", "model.norm.weight", "_norm.weight")


def convert_as_mlx_lm(source: Path, target: Path, *, centred: bool) -> Path:
    """Write what `sanitize` of mlx-lm's models makes of a checkpoint."""
    shutil.copytree(source, target)

    def converted(name: str, tensor: NDArray[Any]) -> NDArray[Any]:
        if name.endswith(("conv1d.weight", "conv.conv.weight")):
            return tensor.swapaxes(1, 2)
        return tensor + np.float32(1) if centred and name.endswith(CENTRED) else tensor

    def renamed(name: str) -> str:
        block, mlp, part = name.partition(".feed_forward.w")
        return f"{block}.feed_forward.{MLP[part[0]]}{part[1:]}" if mlp and experts else name

    tensors = stack_experts(dict(open_weights(source)))
    experts = any(".switch_mlp." in name for name in tensors)
    values = {renamed(name): converted(name, each) for name, each in tensors.items()}
    write_safetensors(target / "model.safetensors", values)
    return target


@pytest.mark.parametrize("family", ["lfm2", "lfm2_moe", "nemotron_h", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"])
def test_tensors_are_those_of_the_original(tmp_path: Path, family: str) -> None:
    experts: Any = {"layers": 4, "fields": NEMOTRON_LATENTS} if family == "nemotron_h" else {}
    source = make_checkpoint(tmp_path / "original", family, **experts)
    original = open_weights(source)
    converted = open_weights(convert_as_mlx_lm(source, tmp_path / "converted", centred="qwen" in family))
    assert set(converted) == set(original)
    for name in original:
        assert converted.shape(name) == original.shape(name), name
        np.testing.assert_allclose(converted[name], original[name], atol=2e-7, rtol=0, err_msg=name)
        np.testing.assert_array_equal(converted.take(name, original.shape(name)), converted[name])


def test_a_stack_of_heads_is_one_matrix(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "model", "deepseek_v3")
    name, heads = "model.layers.0.self_attn.embed_q.weight", np.arange(4 * 3 * 2, dtype=np.float32).reshape(4, 3, 2)
    write_safetensors(source / "model.safetensors", {name: heads})
    weights = open_weights(source)
    assert weights.shape(name) == (12, 2)
    np.testing.assert_array_equal(weights.take(name, (12, 2)), heads.reshape(12, 2))


def test_a_renamed_matrix_keeps_its_own_groups_and_is_there_once(tmp_path: Path) -> None:
    source = convert_as_mlx_lm(make_checkpoint(tmp_path / "a", "lfm2_moe"), tmp_path / "b", centred=False)
    name = "model.layers.0.feed_forward.gate_proj"
    plan = Quantization(32, 4, {name: (64, 8), "model.layers.1.feed_forward.gate": (64, 8)})
    assert ConvertedWeights(source, plan)._quantization == replace(
        plan, overrides={"model.layers.0.feed_forward.w1": (64, 8), "model.layers.1.feed_forward.gate": (64, 8)}
    )
    twice = {f"model.layers.0.feed_forward.{part}.weight": np.ones((2, 2), np.float32) for part in ("w1", "gate_proj")}
    write_safetensors(source / "model.safetensors", twice)
    with pytest.raises(CheckpointError, match=r"feed_forward.* is there as .*feed_forward.*, too"):
        open_weights(source)
