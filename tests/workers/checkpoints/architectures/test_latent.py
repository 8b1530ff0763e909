"""Families with latent attention: their config.json, as published and refused, and the rows of their tensors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.workers.checkpoints.architectures.configs import read
from workers.checkpoints.architectures.parts import ExpertRouter, Experts, KvShape, LatentAttention
from workers.checkpoints.architectures.rope import Yarn
from workers.checkpoints.architectures.row_order import HeadPart, LatentOrder
from workers.checkpoints.architectures.tensors import parameter_count, unread_reason
from workers.checkpoints.checkpoint import CheckpointError
from workers.errors import LoadRefused

# As on the hub, from memory; what says nothing of the model's shape is left out.
V2_LITE: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "aux_loss_alpha": 0.001,
    "bos_token_id": 100000,
    "eos_token_id": 100001,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v2",
    "moe_intermediate_size": 1408,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "greedy",
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 102400,
}
V3 = V2_LITE | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "rope_scaling": V2_LITE["rope_scaling"] | {"mscale": 1.0, "mscale_all_dim": 1.0},
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "vocab_size": 129280,
}
GLM: dict[str, Any] = {
    "architectures": ["Glm4MoeLiteForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 10240,
    "kv_lora_rank": 512,
    "max_position_embeddings": 202752,
    "model_type": "glm4_moe_lite",
    "moe_intermediate_size": 1536,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 20,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 47,
    "num_key_value_heads": 20,
    "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 1.0,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "routed_scaling_factor": 1.8,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "v_head_dim": 256,
    "vocab_size": 154880,
}
MINICPM3: dict[str, Any] = {
    "architectures": ["MiniCPM3ForCausalLM"],
    "dim_model_base": 256,
    "hidden_act": "silu",
    "hidden_size": 2560,
    "intermediate_size": 6400,
    "kv_lora_rank": 256,
    "max_position_embeddings": 32768,
    "model_type": "minicpm3",
    "num_attention_heads": 40,
    "num_hidden_layers": 62,
    "num_key_value_heads": 40,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "type": "longrope",
        "long_factor": [1.0] * 16,
        "short_factor": [1.0] * 16,
        "original_max_position_embeddings": 32768,
    },
    "scale_depth": 1.4,
    "scale_emb": 12,
    "torch_dtype": "bfloat16",
    "vocab_size": 73448,
}


def test_deepseek_v2_lite(tmp_path: Path) -> None:
    config = read(tmp_path, V2_LITE)
    assert config.latent == LatentAttention(512, 64, 128, 128)
    assert config.kv_shapes == (KvShape(1, 576, 512),)
    assert (config.heads, config.interleaved_rope, config.ropes[0].dims) == (16, True, 64)
    assert isinstance(config.ropes[0].scaling, Yarn)
    assert config.ropes[0].scaling.attention_factor == 1.0
    assert config.attention_scale == pytest.approx(192**-0.5 * (0.0707 * np.log(40) + 1) ** 2)
    assert config.experts == Experts(64, 6, 1408, False, 2816, router=ExpertRouter())
    assert [layer.experts for layer in config.plan] == [False] + [True] * 26
    assert 15.7e9 < parameter_count(config) < 15.8e9
    plan = V2_LITE["rope_scaling"] | {"rope_theta": 10000}
    changes: dict[str, Any] = {"rope_theta": ..., "rope_scaling": ..., "rope_parameters": plan}
    assert read(tmp_path, V2_LITE, **changes) == config, "as transformers 5 writes it"


def test_deepseek_v3(tmp_path: Path) -> None:
    config = read(tmp_path, V3)
    assert config.latent == LatentAttention(512, 64, 128, 128, 1536)
    router = ExpertRouter("sigmoid", bias=True, groups=8, kept_groups=4, scale=2.5, sum_offset=1e-20)
    assert config.experts == Experts(256, 8, 2048, True, 2048, router=router)
    assert sum(layer.experts for layer in config.plan) == 58
    assert unread_reason("model.layers.61.eh_proj.weight", config)
    assert not unread_reason("model.layers.62.eh_proj.weight", config)
    assert not read(tmp_path, V3, rope_interleave=False).interleaved_rope


def test_glm_4_7_flash(tmp_path: Path) -> None:
    config = read(tmp_path, GLM)
    assert config.latent == LatentAttention(512, 64, 192, 256, 768)
    assert config.attention_scale == 256**-0.5
    assert [layer.experts for layer in config.plan] == [False] + [True] * 46
    kinds = ["sparse", "dense"] * 23 + ["dense"]
    listed = read(tmp_path, GLM, mlp_layer_types=kinds)
    assert [layer.experts for layer in listed.plan] == [kind == "sparse" for kind in kinds]


def test_minicpm3(tmp_path: Path) -> None:
    config = read(tmp_path, MINICPM3)
    assert config.latent == LatentAttention(256, 32, 64, 64, 768)
    assert (config.embedding_scale, config.logits_scaling, config.tie_embeddings) == (12, 10, True)
    assert config.residual_multiplier == pytest.approx(1.4 / 62**0.5)
    assert not config.interleaved_rope
    config.check_kv_dtype("auto")
    with pytest.raises(LoadRefused, match="kv_dtype: int8 is not supported for latents"):
        config.check_kv_dtype("int8")


@pytest.mark.parametrize(
    ("base", "changes", "words"),
    [
        (V2_LITE, {"norm_topk_prob": True}, "norm_topk_prob: true is not supported"),
        (V2_LITE, {"moe_layer_freq": 2}, "moe_layer_freq: 2 is not supported"),
        (V2_LITE, {"topk_method": "noaux_tc"}, "topk_method: 'noaux_tc' is not supported"),
        (V2_LITE, {"attention_bias": True}, "attention_bias: is not supported for deepseek_v2"),
        (V2_LITE, {"num_key_value_heads": 4}, "num_key_value_heads: is not num_attention_heads, 16"),
        (V2_LITE, {"qk_rope_head_dim": 63}, "qk_rope_head_dim: 63 is odd"),
        (V3, {"topk_method": "greedy"}, "topk_method: 'greedy' is not supported"),
        (V3, {"scoring_func": "softmax"}, "scoring_func: 'softmax' is not supported"),
        (GLM, {"mlp_layer_types": ["sparse"]}, "mlp_layer_types: is not 'dense' or 'sparse' for each of 47 layers"),
        (MINICPM3, {"kv_lora_rank": 0}, "kv_lora_rank: 0 is not an integer"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) and len(value) == 1 else "",
)
def test_refused_by_name(tmp_path: Path, base: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read(tmp_path, base, **changes)


def test_lanes_without_positions_are_read_first() -> None:
    assert LatentOrder(2, 1, 4, interleaved=False).rows().tolist() == [0, 5, 1, 2, 3, 4, 6, 7, 8, 9]
    assert LatentOrder(2, 1, 4, interleaved=True).rows().tolist() == [0, 5, 1, 3, 2, 4, 6, 8, 7, 9]


def test_each_head_has_matrices_of_its_own() -> None:
    stored = np.arange(2 * 3 * 2).reshape(6, 2)  # two heads of a key and two values, a latent of two lanes
    keys, values = HeadPart(2, 0, 1, transposed=True), HeadPart(2, 1, 2, transposed=False)
    assert keys.take(stored).tolist() == [[0], [1], [6], [7]]
    assert values.take(stored).tolist() == [[2, 3], [4, 5], [8, 9], [10, 11]]
    assert (keys.shape(stored.shape), values.shape(stored.shape)) == ((4, 1), (4, 2))
