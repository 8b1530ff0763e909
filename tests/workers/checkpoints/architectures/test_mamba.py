"""Configurations of models with Mamba-2: Granite 4 and Nemotron-H."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import make_checkpoint
from tests.workers.checkpoints.architectures.configs import read
from workers.checkpoints.architectures.parts import ExpertRouter, Experts, Mamba2
from workers.checkpoints.architectures.tensors import check_tensors, parameter_count
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig, open_weights

GRANITE_350M: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "attention_multiplier": 0.015625,
    "embedding_multiplier": 12,
    "hidden_act": "silu",
    "hidden_size": 768,
    "intermediate_size": 2048,
    "layer_types": ["attention" if layer in (10, 13, 17, 27) else "mamba" for layer in range(32)],
    "logits_scaling": 3,
    "mamba_chunk_size": 256,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 128,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 48,
    "mamba_proj_bias": False,
    "max_position_embeddings": 32768,
    "model_type": "granitemoehybrid",
    "num_attention_heads": 12,
    "num_experts_per_tok": 0,
    "num_hidden_layers": 32,
    "num_key_value_heads": 4,
    "num_local_experts": 0,
    "position_embedding_type": "nope",
    "residual_multiplier": 0.246,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000,
    "shared_intermediate_size": 2048,
    "tie_word_embeddings": True,
    "time_step_limit": [0.0, math.inf],
    "torch_dtype": "bfloat16",
    "vocab_size": 100352,
}
NEMOTRON_8B: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"],
    "attention_bias": False,
    "conv_kernel": 4,
    "expand": 2,
    "head_dim": 128,
    "hidden_size": 4096,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "intermediate_size": 21504,
    "layer_norm_epsilon": 1e-05,
    "mamba_head_dim": 64,
    "mamba_hidden_act": "silu",
    "mamba_num_heads": 128,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "mlp_hidden_act": "relu2",
    "model_type": "nemotron_h",
    "n_groups": 8,
    "num_attention_heads": 32,
    "num_hidden_layers": 52,
    "num_key_value_heads": 8,
    "ssm_state_size": 128,
    "tie_word_embeddings": False,
    "time_step_limit": [0.0, math.inf],
    "torch_dtype": "bfloat16",
    "use_bias": False,
    "use_conv_bias": True,
    "vocab_size": 131072,
}
NEMOTRON_30B_A3B = NEMOTRON_8B | {
    "hidden_size": 2688,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "intermediate_size": 1856,
    "mamba_num_heads": 64,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "n_group": 1,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 6,
    "num_key_value_heads": 2,
    "routed_scaling_factor": 2.5,
    "topk_group": 1,
}
"""All as on the hub, from memory."""


def test_granite_4_as_published(tmp_path: Path) -> None:
    config = read(tmp_path, GRANITE_350M)
    assert config.mamba == Mamba2(48, 32, 1, 128, 4)
    assert (config.ffn, config.experts, config.head_dim, config.logits_scaling) == (2048, None, 64, 3)
    assert [number for number, layer in enumerate(config.plan) if layer.kind == "attention"] == [10, 13, 17, 27]
    assert all(layer.rope is None and layer.mlp and not layer.experts for layer in config.plan)
    assert config.state_bytes == 4 * 28 * (3 * (1536 + 256) + 1536 * 128)
    assert (config.kv_layers, config.state_layers, config.state_index(14)) == (4, 28, 12)


def test_granite_4_with_experts_and_without_mamba(tmp_path: Path) -> None:
    tiny = read(tmp_path, GRANITE_350M, num_local_experts=64, num_experts_per_tok=6, intermediate_size=512)
    assert tiny.experts == Experts(64, 6, 512, True, shared_ffn=2048)
    assert all(layer.experts for layer in tiny.plan)
    attending = {"layer_types": ["attention"] * 32, "position_embedding_type": "rope"}
    micro = read(tmp_path, GRANITE_350M, **attending)
    assert (micro.mamba, micro.state_values) == (None, 0)
    assert all(layer.rope == 0 for layer in micro.plan)
    wide = read(tmp_path, GRANITE_350M, mamba_d_head="auto", time_step_limit=[0.001, 100])
    assert wide.mamba == Mamba2(48, 32, 1, 128, 4, step_limit=(0.001, 100.0))


@pytest.mark.parametrize("listed", ["hybrid_override_pattern", "layers_block_type", "layer_types"])
def test_nemotron_h_as_published(tmp_path: Path, listed: str) -> None:
    names = {"M": "linear_attention", "*": "full_attention", "-": "mlp"}
    stated: Any = NEMOTRON_8B["hybrid_override_pattern"]
    if listed != "hybrid_override_pattern":
        stated = [names[letter] for letter in stated]
    config = read(tmp_path, NEMOTRON_8B | {"hybrid_override_pattern": ...}, num_hidden_layers=..., **{listed: stated})
    assert config.mamba == Mamba2(128, 64, 8, 128, 4)
    assert [layer.kind for layer in config.plan[6:10]] == ["mamba2", "attention", "none", "mamba2"]
    assert [layer.mlp for layer in config.plan[6:10]] == [False, False, True, False]
    assert (config.layers, config.kv_layers, config.state_layers) == (52, 4, 24)
    assert (config.gated, config.activation, config.rms_eps, config.head_dim) == (False, "relu2", 1e-5, 128)
    assert all(layer.rope is None for layer in config.plan)


def test_nemotron_3_nano_as_published(tmp_path: Path) -> None:
    config = read(tmp_path, NEMOTRON_30B_A3B)
    router = ExpertRouter("sigmoid", bias=True, scale=2.5, sum_offset=1e-20)
    assert config.experts == Experts(128, 6, 1856, True, shared_ffn=3712, router=router, gated=False)
    assert [layer.experts for layer in config.plan[:6]] == [False, True, False, True, False, False]
    assert [(layer.kind, layer.mlp) for layer in config.plan[4:7]] == [
        *(("mamba2", False), ("attention", False), ("none", True))
    ]
    assert (config.layers, config.kv_layers, config.state_layers) == (52, 6, 23)
    assert round(parameter_count(config) / 1e9, 1) == 31.6
    super_ = read(tmp_path, NEMOTRON_30B_A3B, moe_latent_size=1024, n_group=8, topk_group=2)
    assert super_.experts is not None
    assert (super_.experts.latent, super_.experts.router.groups) == (1024, 8)


def test_granite_4_as_mlx_lm_converts_it(tmp_path: Path) -> None:
    assert read(tmp_path, GRANITE_350M).names.down == "shared_mlp.output_linear"
    index = tmp_path / "model.safetensors.index.json"
    for module, expected in (("shared_mlp.output_linear", 1), ("mlp.down_proj", 2)):
        index.write_text(json.dumps({"weight_map": {f"model.layers.0.{module}.weight": "model.safetensors"}}))
        names = read(tmp_path, GRANITE_350M).names
        assert (names.down, len(names.gate_up)) == (module, expected)
    index.unlink()
    assert read(tmp_path, GRANITE_350M, quantization={"group_size": 32, "bits": 4}).names.down == "mlp.down_proj"


def test_heads_for_drafts_are_left_out(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "nemotron_h", layers=3)
    config, names = ModelConfig.from_dir(path), list(open_weights(path))
    check_tensors([*names, "mtp.layers.0.norm.weight"], config, path)
    with pytest.raises(CheckpointError, match=r"backbone.layers.2.mixer.A_log: the tensor is not part of"):
        check_tensors([*names, "backbone.layers.2.mixer.A_log"], config, path)


@pytest.mark.parametrize(
    ("base", "changes", "words"),
    [
        (GRANITE_350M, {"mamba_proj_bias": True}, "mamba_proj_bias: True is not supported"),
        (GRANITE_350M, {"mamba_n_groups": 5}, "mamba_n_groups: 5 does not divide mamba_n_heads, 48"),
        (GRANITE_350M, {"mamba_d_head": 64}, "mamba_d_head: 48 heads of 64 lanes are not 1536 lanes together"),
        (GRANITE_350M, {"mamba_n_heads": 47}, "mamba_d_head: 47 heads of 32 lanes are not 1536 lanes together"),
        (GRANITE_350M, {"mamba_d_conv": 1}, "mamba_d_conv: 1 is not from 2 to 64"),
        (GRANITE_350M, {"position_embedding_type": "alibi"}, "position_embedding_type: 'alibi' is not supported"),
        (GRANITE_350M, {"time_step_limit": [0.0]}, "time_step_limit: is not a list of two numbers"),
        (GRANITE_350M, {"time_step_limit": [1.0, 1.0]}, r"time_step_limit: \[1.0, 1.0\] is not a step from 0 on"),
        (GRANITE_350M, {"time_step_limit": [-1.0, 1.0]}, r"time_step_limit: \[-1.0, 1.0\] is not a step from 0 on"),
        (GRANITE_350M, {"layer_types": ...}, "layer_types: a model in which no layer attends is not supported"),
        (NEMOTRON_8B, {"hybrid_override_pattern": "M-*x"}, "hybrid_override_pattern: is not a list of layers"),
        (NEMOTRON_30B_A3B, {"mlp_bias": True}, "architectures: .* with a mixture of experts and mlp_bias true"),
        (NEMOTRON_30B_A3B, {"moe_latent_size": 0}, "moe_latent_size: 0 is not"),
        (NEMOTRON_30B_A3B, {"n_group": 3}, "n_group: 3 groups of 128 experts are not equal"),
        (NEMOTRON_30B_A3B, {"num_experts_per_tok": 129}, "num_experts_per_tok: 129 is more than num_experts, 128"),
        (NEMOTRON_8B, {"num_hidden_layers": 51}, "layer_types: is not .* for each of 51 layers"),
        (NEMOTRON_8B, {"use_bias": True}, "use_bias: true is not supported"),
        (NEMOTRON_8B, {"tie_word_embeddings": True}, "tie_word_embeddings: true is not supported"),
        (NEMOTRON_8B, {"n_groups": 3}, "n_groups: 3 does not divide mamba_n_heads, 128"),
    ],
)
def test_refused_by_name(tmp_path: Path, base: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read(tmp_path, base, **changes)
