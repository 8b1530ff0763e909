"""Supported fields of config.json, and their meaning."""

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import LLAMA3_SCALING, make_checkpoint
from tests.families import ARCHITECTURES
from tests.workers.checkpoints.architectures.configs import LLAMA3, read
from workers.checkpoints.architectures.families import FAMILIES
from workers.checkpoints.architectures.parts import ExpertRouter, Experts
from workers.checkpoints.architectures.rope import Linear, Llama3, Proportional, Rope, Scaling
from workers.checkpoints.checkpoint import DEFAULT_CONTEXT, CheckpointError, ModelConfig
from workers.errors import LoadRefused


def test_llama_3_2_as_published(tmp_path: Path) -> None:
    config = read(tmp_path, rope_scaling=LLAMA3)
    assert (config.family, config.layers, config.heads, config.kv_heads, config.head_dim) == ("llama", 16, 32, 8, 64)
    assert config.ropes == (Rope(500000.0, 64, Llama3(32.0, 1.0, 4.0, 8192)),)
    assert (config.tie_embeddings, config.dtype) == (True, "bfloat16")
    assert (config.qkv_bias, config.o_bias, config.head_norm) == (False, False, None)


def test_rope_parameters_are_equivalent_to_the_older_fields(tmp_path: Path) -> None:
    old = read(tmp_path, rope_scaling=LLAMA3)
    new = read(tmp_path, rope_theta=..., rope_parameters=LLAMA3 | {"rope_theta": 500000.0})
    assert new == old
    both = LLAMA3 | {"rope_theta": 500000.0, "type": "llama3"}
    assert read(tmp_path, rope_scaling=LLAMA3, rope_parameters=both) == old


@pytest.mark.parametrize(
    ("plan", "scaling"),
    [
        (None, None),
        ({"rope_type": "default"}, None),
        ({"type": "linear", "factor": 2.0}, Linear(2.0)),
        ({"rope_type": None, "type": "linear", "factor": 2.0}, Linear(2.0)),
    ],
)
def test_rope_scaling(tmp_path: Path, plan: Any, scaling: Scaling | None) -> None:
    assert read(tmp_path, rope_scaling=plan).ropes == (Rope(500000.0, 64, scaling),)


def test_heads_default_to_plain_attention(tmp_path: Path) -> None:
    config = read(tmp_path, num_key_value_heads=..., head_dim=None)
    assert (config.kv_heads, config.head_dim) == (32, 64)


def test_qwen2_has_biases_and_its_window_is_off(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        architectures=["Qwen2ForCausalLM"],
        model_type="qwen2",
        use_sliding_window=False,
        sliding_window=32768,
        max_window_layers=21,
    )
    assert (config.family, config.qkv_bias, config.o_bias, config.plan[-1].window) == ("qwen2", True, False, None)


def test_qwen3_has_query_and_key_norms(tmp_path: Path) -> None:
    config = read(tmp_path, architectures=["Qwen3ForCausalLM"], model_type="qwen3", head_dim=...)
    assert (config.family, config.head_norm, config.qkv_bias, config.head_dim) == ("qwen3", "each", False, 128)


def test_attention_bias_covers_the_output_projection(tmp_path: Path) -> None:
    config = read(tmp_path, attention_bias=True)
    assert config.qkv_bias
    assert config.o_bias


QWEN = {"sliding_window": 4096, "use_sliding_window": True, "num_hidden_layers": 3}
KINDS = ["full_attention", "sliding_attention", "full_attention"]


@pytest.mark.parametrize(
    ("family", "changes", "windows"),
    [
        ("mistral", {"num_hidden_layers": 2, "sliding_window": 4096}, [4096, 4096]),
        ("mistral", {"num_hidden_layers": 2, "sliding_window": None}, [None, None]),
        ("mistral", {"num_hidden_layers": 2}, [4096, 4096]),
        ("llama", {"num_hidden_layers": 2, "sliding_window": 4096}, [None, None]),
        ("qwen2", QWEN | {"use_sliding_window": False}, [None, None, None]),
        ("qwen2", QWEN | {"max_window_layers": 2}, [None, None, 4096]),
        ("qwen2", QWEN | {"max_window_layers": 3}, [None, None, None]),
        ("qwen3", QWEN | {"max_window_layers": 3, "layer_types": KINDS}, [None, 4096, None]),
        ("qwen3_moe", QWEN | {"num_experts": 8}, [4096, 4096, 4096]),
        ("phi3", {"num_hidden_layers": 2, "sliding_window": 2047}, [2047, 2047]),
        ("smollm3", QWEN | {"no_rope_layers": [1, 0, 1]}, [None, 4096, None]),
        ("smollm3", QWEN | {"use_sliding_window": None, "no_rope_layers": [1, 0, 1]}, [None, None, None]),
        ("gemma2", {"num_hidden_layers": 3}, [4096, None, 4096]),
        ("olmo3", {"num_hidden_layers": 5}, [4096, 4096, 4096, None, 4096]),
        ("gemma2", {"num_hidden_layers": 3, "layer_types": KINDS}, [None, 4096, None]),
        ("gemma3_text", {"num_hidden_layers": 7, "sliding_window": 512}, [512] * 5 + [None, 512]),
        ("gemma3_text", {"num_hidden_layers": 3, "sliding_window_pattern": 2}, [4096, None, 4096]),
    ],
)
def test_windows(tmp_path: Path, family: str, changes: dict[str, Any], windows: list[int | None]) -> None:
    activation = {"hidden_act": None, "hidden_activation": "gelu_pytorch_tanh"} if "gemma" in family else {}
    config = read(tmp_path, architectures=[ARCHITECTURES[family]], model_type=family, **activation, **changes)
    assert [layer.window for layer in config.plan] == windows


def test_layers_without_positions(tmp_path: Path) -> None:
    smollm3: dict[str, Any] = {"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "num_hidden_layers": 8}
    assert [layer.rope for layer in read(tmp_path, **smollm3).plan] == [0, 0, 0, None, 0, 0, 0, None]
    marked = read(tmp_path, **smollm3, no_rope_layers=[0, 1] * 4)
    assert [layer.rope for layer in marked.plan] == [None, 0] * 4


def test_which_layers_have_experts(tmp_path: Path) -> None:
    moe: dict[str, Any] = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": 4}
    config = read(tmp_path, **moe, num_experts=16, decoder_sparse_step=2, mlp_only_layers=[3], norm_topk_prob=True)
    assert [layer.experts for layer in config.plan] == [False, True, False, False]
    assert config.experts == Experts(16, 8, 768, True)
    moe2 = moe | {"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe"}
    shared = read(tmp_path, **moe2, num_experts=8)
    assert shared.experts == Experts(8, 4, 1408, False, 5632, True)
    assert (shared.qkv_bias, shared.o_bias) == (True, False)
    with pytest.raises(CheckpointError, match="shared_expert_intermediate_size: 0 is not an integer from 1"):
        read(tmp_path, **moe2, num_experts=8, shared_expert_intermediate_size=0)
    granite = {"architectures": ["GraniteMoeSharedForCausalLM"], "model_type": "granitemoeshared"}
    config = read(tmp_path, **moe | granite, num_local_experts=8, shared_intermediate_size=0)
    assert config.experts is not None
    assert config.experts.shared_ffn == 0
    # transformers 5 writes the number under its other name
    assert read(tmp_path, **moe, num_local_experts=12).experts == Experts(12, 8, 768, False)


def test_context_up_to_the_model_and_not_beyond(tmp_path: Path) -> None:
    config = read(tmp_path, max_position_embeddings=8192)
    assert config.choose_context(0) == DEFAULT_CONTEXT
    assert config.choose_context(8192) == 8192
    with pytest.raises(CheckpointError, match=r"max_position_embeddings: is 8192, less than the context of 8193"):
        config.choose_context(8193)
    assert config.choose_context(2) == 2
    with pytest.raises(LoadRefused, match="context: 1 token leaves no room for an answer"):
        config.choose_context(1)


def test_what_early_checkpoints_of_gemma_call_gelu_is_its_approximation(tmp_path: Path) -> None:
    gemma: dict[str, Any] = {"architectures": ["GemmaForCausalLM"], "model_type": "gemma"}
    early = read(tmp_path, **gemma, hidden_act="gelu", hidden_activation=None)
    assert early == read(tmp_path, **gemma, hidden_act="gelu_pytorch_tanh")
    assert (early.family, early.activation, early.norm_offset) == ("gemma", "gelu_tanh", 1.0)
    assert early.embedding_scale == 2048**0.5


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_made_checkpoints_parse(tmp_path: Path, family: Any) -> None:
    config = ModelConfig.from_dir(make_checkpoint(tmp_path, family, rope_scaling=LLAMA3_SCALING))
    assert (config.family, config.layers, config.hidden_size, config.vocab_size) == (family, 2, 64, 512)
    assert isinstance(config.ropes[0].scaling, Proportional if family.startswith("gemma4") else Llama3)


def test_the_maker_and_the_reader_know_the_same_families() -> None:
    assert {name: family.architecture for name, family in FAMILIES.items()} == ARCHITECTURES


def test_lfm2_moe_as_published(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "architectures": ["Lfm2MoeForCausalLM"],
        "model_type": "lfm2_moe",
        "num_hidden_layers": 4,
        "layer_types": ["conv", "conv", "full_attention", "conv"],
        "intermediate_size": 7168,
        "num_experts": 32,
        "norm_eps": 1e-5,
        "rms_norm_eps": ...,
    }
    config = read(tmp_path, **fields)
    router = ExpertRouter("sigmoid", bias=True, sum_offset=1e-6)
    assert config.experts == Experts(32, 4, 1792, True, router=router)
    assert [layer.experts for layer in config.plan] == [False, False, True, True]
    assert (config.ffn, config.kv_layers, config.state_layers) == (7168, 1, 3)
    other = read(tmp_path, **fields, use_expert_bias=False, num_dense_layers=0, routed_scaling_factor=2.0)
    assert other.experts is not None
    assert other.experts.router == ExpertRouter("sigmoid", scale=2.0, sum_offset=1e-6)
    assert all(layer.experts for layer in other.plan)
