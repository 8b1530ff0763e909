"""Gemma 4's config.json as it is published, as transformers saves it, and what of it is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.workers.checkpoints.architectures.configs import read
from workers.checkpoints.architectures.parts import Experts, KvShape, PerLayerEmbedding
from workers.checkpoints.architectures.rope import Proportional, Rope
from workers.checkpoints.architectures.tensors import parameter_count, unread_reason
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig
from workers.errors import LoadRefused

ROPES = {
    "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
    "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
}
COMMON = {
    "attention_bias": False,
    "final_logit_softcapping": 30.0,
    "global_head_dim": 512,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072,
    "model_type": "gemma4_text",
    "rms_norm_eps": 1e-06,
    "rope_parameters": ROPES,
    "tie_word_embeddings": True,
    "vocab_size": 262144,
    "vocab_size_per_layer_input": 262144,
}
E2B = COMMON | {
    "attention_k_eq_v": False,
    "enable_moe_block": False,
    "hidden_size": 1536,
    "hidden_size_per_layer_input": 256,
    "intermediate_size": 6144,
    "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
    "num_attention_heads": 8,
    "num_experts": None,
    "num_global_key_value_heads": None,
    "num_hidden_layers": 35,
    "num_key_value_heads": 1,
    "num_kv_shared_layers": 20,
    "sliding_window": 512,
    "top_k_experts": None,
    "use_bidirectional_attention": None,
    "use_double_wide_mlp": True,
}
LARGE = COMMON | {
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
    "sliding_window": 1024,
    "use_bidirectional_attention": "vision",
    "use_double_wide_mlp": False,
}
B31 = LARGE | {
    "hidden_size": 5376,
    "intermediate_size": 21504,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10,
    "num_attention_heads": 32,
    "num_global_key_value_heads": 4,
    "num_hidden_layers": 60,
    "num_key_value_heads": 16,
}
A4B = LARGE | {
    "enable_moe_block": True,
    "hidden_size": 2816,
    "intermediate_size": 2112,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
    "moe_intermediate_size": 704,
    "num_attention_heads": 16,
    "num_experts": 128,
    "num_global_key_value_heads": 2,
    "num_hidden_layers": 30,
    "num_key_value_heads": 8,
    "top_k_experts": 8,
}
"""As on the hub, from memory."""
FULL_LAYERS_OF_511 = {str(layer): {"head_dim": 511} for layer in range(4, 35, 5)}


def wrapped(text: dict[str, Any]) -> dict[str, Any]:
    outer = {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "text_config": text}
    return outer | {"dtype": "bfloat16", "vision_config": {"model_type": "gemma4_vision"}}


def test_e2b_as_published(tmp_path: Path) -> None:
    config = read(tmp_path, wrapped(E2B))
    assert (config.family, config.layers, config.dtype, config.logit_cap) == ("gemma4_text", 35, "bfloat16", 30.0)
    assert config.ropes == (Rope(1e6, 512, Proportional(64)), Rope(1e4, 256))
    assert (config.attention_scale, config.embedding_scale) == (1.0, 1536**0.5)
    assert config.per_layer == PerLayerEmbedding(256, 262144, 16.0)
    assert config.kv_shapes == (KvShape(1, 256, 256), KvShape(1, 512, 512))
    full, windowed = config.plan[4], config.plan[3]
    assert (full.window, full.rope, full.kv_shape) == (None, 0, 1)
    assert (windowed.window, windowed.rope, windowed.kv_shape) == (512, 1, 0)
    assert [layer.kv_source for layer in config.plan[:20]] == [None] * 15 + [13] * 4 + [14]
    assert [layer.ffn_multiple for layer in config.plan] == [1] * 15 + [2] * 20
    assert config.kv_layers == 15
    assert 4.5e9 < parameter_count(config) - 262144 * 1536 < 5.2e9  # "2B" counts no embeddings of layers


def test_31b_as_published(tmp_path: Path) -> None:
    config = read(tmp_path, wrapped(B31))
    assert config.kv_shapes == (KvShape(16, 256, 256), KvShape(4, 512, 512))
    assert [layer.keys_as_values for layer in config.plan[:7]] == [False] * 5 + [True, False]
    assert (config.per_layer, config.experts, config.experts_beside_mlp) == (None, None, False)
    assert 30e9 < parameter_count(config) - 262144 * 5376 < 31.5e9


def test_26b_as_published(tmp_path: Path) -> None:
    config = read(tmp_path, wrapped(A4B))
    assert config.experts == Experts(128, 8, 704, normalize=True)
    assert (config.experts_beside_mlp, all(layer.experts for layer in config.plan)) == (True, True)
    assert 25e9 < parameter_count(config) - 262144 * 2816 < 26.5e9


@pytest.mark.parametrize("digits", [1, 2])
def test_shapes_as_transformers_saves_them(tmp_path: Path, digits: int) -> None:
    """Numbers of layers have as many digits as the last one's."""
    plain = {"architectures": ["Gemma4ForCausalLM"], **B31}
    each = {f"{layer:0{digits}}": {"head_dim": 512, "num_key_value_heads": 4} for layer in range(5, 60, 6)}
    saved = {"global_head_dim": ..., "num_global_key_value_heads": ..., "per_layer_config": each}
    assert read(tmp_path, plain, **saved) == read(tmp_path, plain)


def test_the_last_layer_has_no_window(tmp_path: Path) -> None:
    plain = {"architectures": ["Gemma4ForCausalLM"], **B31}
    kinds = ["sliding_attention"] * 60
    config = read(tmp_path, plain, layer_types=kinds)
    assert [layer.window for layer in config.plan[-2:]] == [1024, None]
    assert config.plan[-1] == read(tmp_path, plain).plan[-1]


def test_the_unified_model_differs_in_defaults(tmp_path: Path) -> None:
    fields = {name: value for name, value in B31.items() if name not in ("sliding_window", "max_position_embeddings")}
    config = read(tmp_path, {**fields, "architectures": ["Gemma4UnifiedForCausalLM"]})
    assert (config.plan[0].window, config.max_positions, config.per_layer) == (1024, 262144, None)
    expected = read(tmp_path, {"architectures": ["Gemma4ForCausalLM"], **B31})
    assert replace(config, family="gemma4_text", max_positions=131072) == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention: 'all' is not supported"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: 50.0 is not supported"),
        ({"query_pre_attn_scalar": 256}, "query_pre_attn_scalar: 256 is not supported"),
        ({"num_kv_shared_layers": 35}, "num_kv_shared_layers: 35 leaves no layer"),
        ({"num_kv_shared_layers": 31}, "num_kv_shared_layers: 31 leaves no layer"),
        ({"num_kv_shared_layers": -1}, "num_kv_shared_layers: -1 is not an integer"),
        ({"vocab_size_per_layer_input": 262143}, "vocab_size_per_layer_input: 262143 is less than vocab_size"),
        ({"global_head_dim": 511}, "global_head_dim: 511 is odd"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: 3 does not divide"),
        ({"enable_moe_block": True}, "num_experts: None is not an integer"),
        ({"enable_moe_block": 1}, "enable_moe_block: 1 is neither true nor false"),
        (
            {"attention_k_eq_v": True, "num_global_key_value_heads": 3},
            "num_global_key_value_heads: 3 does not divide num_attention_heads, 8",
        ),
        ({"per_layer_config": {"4": {"head_dim": 512}}}, "per_layer_config: is not the same for all layers without"),
        ({"per_layer_config": FULL_LAYERS_OF_511}, "per_layer_config: has an odd head_dim, 511"),
        ({"per_layer_config": {"3": {"head_dim": 512}}}, r"per_layer_config\.3\.head_dim: is not supported"),
        ({"per_layer_config": {"x": {"head_dim": 512}}}, r"per_layer_config\.x: is not the number of a layer"),
        ({"per_layer_config": {"4": {}, "04": {}}}, r"per_layer_config\.04: states layer 4 once more"),
        ({"per_layer_config": {"4": {"hidden_size": 2}}}, r"per_layer_config\.4\.hidden_size: is not supported"),
        (
            {"rope_parameters": ROPES | {"full_attention": ROPES["full_attention"] | {"partial_rotary_factor": 1.01}}},
            r"full_attention\.partial_rotary_factor: 1.01 of 128 pairs",
        ),
        (
            {"rope_parameters": ROPES | {"full_attention": ROPES["full_attention"] | {"beta_fast": 2}}},
            r"full_attention\.beta_fast: 2 is not supported for 'proportional' positions",
        ),
    ],
)
def test_refused_by_name(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read(tmp_path, {"architectures": ["Gemma4ForCausalLM"], **E2B}, **changes)


def test_embeddings_of_prompts_are_refused_where_layers_have_their_own(tmp_path: Path) -> None:
    small = read(tmp_path, {"architectures": ["Gemma4ForCausalLM"], **E2B})
    with pytest.raises(LoadRefused, match=r"embeddings: .* gemma4_text has \(hidden_size_per_layer_input\)"):
        small.choose_embeddings(True)
    assert not small.choose_embeddings(False)
    assert read(tmp_path, {"architectures": ["Gemma4ForCausalLM"], **B31}).choose_embeddings(True)


def test_published_checkpoints_have_keys_and_values_that_no_layer_reads(tmp_path: Path) -> None:
    config = read(tmp_path, wrapped(E2B))
    for name in ("k_proj", "v_proj", "k_norm", "v_norm"):
        assert unread_reason(f"model.layers.15.self_attn.{name}.weight", config)
        assert not unread_reason(f"model.layers.14.self_attn.{name}.weight", config)
    assert not unread_reason("model.layers.15.self_attn.q_proj.weight", config)
    assert not unread_reason("model.layers.35.self_attn.k_proj.weight", config)


def test_read_from_dir_names_the_family(tmp_path: Path) -> None:
    read(tmp_path, wrapped(A4B))
    assert ModelConfig.family_of(tmp_path) == "gemma4_text"
