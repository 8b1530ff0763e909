"""Configurations of hybrid models: which layers attend, the sizes of the others, and their tensors."""

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import make_checkpoint
from tests.workers.checkpoints.architectures.configs import read
from workers.checkpoints.architectures.parts import Experts, GatedDelta, ShortConvolution, full_layers
from workers.checkpoints.architectures.rope import Rope
from workers.checkpoints.architectures.row_order import PartOrder
from workers.checkpoints.architectures.tensors import check_tensors
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig, open_weights

LFM2_1B: dict[str, Any] = {
    "architectures": ["Lfm2ForCausalLM"],
    "block_auto_adjust_ff_dim": True,
    "block_dim": 2048,
    "block_ff_dim": 12288,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 256,
    "block_norm_eps": 1e-05,
    "conv_L_cache": 3,
    "conv_bias": False,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "hidden_size": 2048,
    "max_position_embeddings": 128000,
    "model_type": "lfm2",
    "norm_eps": 1e-05,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rope_theta": 1000000.0,
    "torch_dtype": "bfloat16",
    "vocab_size": 65536,
}
QWEN3_5: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": {
        "attn_output_gate": True,
        "dtype": "bfloat16",
        "full_attention_interval": 4,
        "head_dim": 256,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "linear_value_head_dim": 128,
        "max_position_embeddings": 262144,
        "model_type": "qwen3_5_text",
        "mtp_num_hidden_layers": 1,
        "num_attention_heads": 8,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
        "tie_word_embeddings": True,
        "vocab_size": 248320,
    },
    "tie_word_embeddings": True,
    "vision_config": {"hidden_size": 768, "model_type": "qwen3_5"},
}
"""Both as on the hub, from memory."""
QWEN3_5_MOE: dict[str, Any] = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "text_config": {name: value for name, value in QWEN3_5["text_config"].items() if name != "intermediate_size"}
    | {
        "hidden_size": 2048,
        "linear_num_value_heads": 32,
        "model_type": "qwen3_5_moe_text",
        "moe_intermediate_size": 512,
        "num_attention_heads": 16,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 40,
        "shared_expert_intermediate_size": 512,
        "tie_word_embeddings": False,
    },
    "tie_word_embeddings": False,
    "vision_config": {"hidden_size": 1152, "model_type": "qwen3_5_moe"},
}


def test_lfm2_as_published(tmp_path: Path) -> None:
    config = read(tmp_path, LFM2_1B)
    attending = [number for number, layer in enumerate(config.plan) if layer.kind == "attention"]
    assert attending == [2, 5, 8, 10, 12, 14]
    assert (config.ffn, config.rms_eps, config.tie_embeddings) == (8192, 1e-5, True)
    assert config.convolution == ShortConvolution(2048, 3)
    assert (config.kv_layers, config.state_layers) == (6, 10)
    assert [config.kv_index(layer) for layer in (2, 5, 14)] == [0, 1, 5]
    assert full_layers(config.plan) == (2, 5, 8, 10, 12, 14)
    assert config.state_values == config.state_offset(16) == 10 * 2 * 2048
    assert config.state_offset(3) == config.state_offset(2) == 2 * 2 * 2048
    exact = read(tmp_path, LFM2_1B, block_auto_adjust_ff_dim=False, block_ff_dim=..., intermediate_size=8000)
    assert exact.ffn == 8000


def test_qwen3_5_as_published(tmp_path: Path) -> None:
    config = read(tmp_path, QWEN3_5)
    assert config.family == "qwen3_5_text"
    assert [layer.kind for layer in config.plan[:4]] == ["gated_delta"] * 3 + ["attention"]
    assert config.delta == GatedDelta(16, 16, 128, 128, 4)
    assert config.ropes == (Rope(1e7, 64),)
    assert (config.attention_gate, config.norm_offset, config.head_dim) == (True, 1.0, 256)
    assert config.state_bytes == 4 * 18 * (3 * 6144 + 16 * 128 * 128)


def test_images_and_drafts_are_left_out(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "qwen3_5_text")
    config, names = ModelConfig.from_dir(path), list(open_weights(path))
    check_tensors([*names, "mtp.fc.weight", "mtp.layers.0.mlp.up_proj.weight"], config, path)
    with pytest.raises(CheckpointError, match=r"model.layers.1.linear_attn.A_log: the tensor is not part of"):
        check_tensors([*names, "model.layers.1.linear_attn.A_log"], config, path)


@pytest.mark.parametrize(
    ("base", "changes", "words"),
    [
        (LFM2_1B, {"conv_bias": True}, "conv_bias: True is not supported"),
        (LFM2_1B, {"conv_L_cache": 1}, "conv_L_cache: 1 is not from 2 to 64"),
        (LFM2_1B, {"conv_L_cache": 65}, "conv_L_cache: 65 is not an integer from 1 to 64"),
        (LFM2_1B, {"block_ff_dim": -1}, "block_ff_dim: -1 is not an integer"),
        (LFM2_1B, {"full_attn_idxs": [16]}, "full_attn_idxs: is not a list of layers below 16"),
        (LFM2_1B, {"full_attn_idxs": []}, "layer_types: a model in which no layer attends is not supported"),
        (LFM2_1B, {"layer_types": ["conv"] * 15}, "layer_types: is not 'full_attention' or 'conv' for each of 16"),
        (LFM2_1B, {"layer_types": ["linear_attention"] * 16}, "layer_types: is not 'full_attention' or 'conv'"),
        (QWEN3_5, {"attn_output_gate": False}, "text_config.attn_output_gate: false is not supported"),
        (QWEN3_5, {"linear_num_value_heads": 24}, "linear_num_value_heads: 24 is no multiple of linear_num_key_heads"),
        (QWEN3_5, {"full_attention_interval": 0}, "full_attention_interval: 0 is not an integer"),
    ],
)
def test_refused_by_name(tmp_path: Path, base: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    if base is QWEN3_5:
        changes = {"text_config": QWEN3_5["text_config"] | changes}
    with pytest.raises(CheckpointError, match=words):
        read(tmp_path, base, **changes)


@pytest.mark.parametrize("taps", [2, 64])
def test_taps_at_the_bounds(tmp_path: Path, taps: int) -> None:
    assert read(tmp_path, LFM2_1B, conv_L_cache=taps).convolution == ShortConvolution(2048, taps)


def test_qwen3_5_moe(tmp_path: Path) -> None:
    config = read(tmp_path, QWEN3_5_MOE)
    assert config.family == "qwen3_5_moe_text"
    assert config.experts == Experts(256, 8, 512, True, shared_ffn=512, shared_gate=True)
    assert all(layer.experts for layer in config.plan)
    assert [layer.kind for layer in config.plan] == (["gated_delta"] * 3 + ["attention"]) * 10


def test_rows_of_a_tensor_in_groups() -> None:
    assert PartOrder(2, (1, 2)).rows().tolist() == [0, 3, 1, 2, 4, 5]
