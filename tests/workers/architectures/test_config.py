"""What config.json may say, what is refused, and that every error names its file and field."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import LLAMA3_SCALING, make_checkpoint
from tests.families import ARCHITECTURES
from workers.architectures.families import FAMILIES
from workers.architectures.parts import Experts, Layer
from workers.architectures.rope import Linear, Llama3, Rope, Scaling
from workers.checkpoint import DEFAULT_CONTEXT, CheckpointError, ModelConfig

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(directory: Path, base: dict[str, Any] = LLAMA, **changes: Any) -> ModelConfig:
    values = {name: value for name, value in (base | changes).items() if value is not ...}
    (directory / "config.json").write_text(json.dumps(values))
    return ModelConfig.from_dir(directory)


def test_llama_3_2_as_published(tmp_path: Path) -> None:
    config = read(tmp_path, rope_scaling=LLAMA3)
    assert (config.family, config.layers, config.heads, config.kv_heads, config.head_dim) == ("llama", 16, 32, 8, 64)
    assert config.ropes == (Rope(500000.0, 64, Llama3(32.0, 1.0, 4.0, 8192)),)
    assert (config.tie_embeddings, config.dtype) == (True, "bfloat16")
    assert (config.qkv_bias, config.o_bias, config.head_norm) == (False, False, None)


# As on the hub, from memory; what says nothing of the model's shape is left out.
PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Llama-3.2-1B": (
        LLAMA
        | {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 128000,
            "eos_token_id": [128001, 128008, 128009],
            "head_dim": 64,
            "hidden_act": "silu",
            "initializer_range": 0.02,
            "mlp_bias": False,
            "pretraining_tp": 1,
            "rope_scaling": LLAMA3,
            "transformers_version": "4.45.0.dev0",
            "use_cache": True,
        },
        {"layers": 16, "head_dim": 64, "kv_heads": 8, "tie_embeddings": True, "qkv_bias": False},
    ),
    "Qwen2.5-0.5B": (
        {
            "architectures": ["Qwen2ForCausalLM"],
            "attention_dropout": 0.0,
            "bos_token_id": 151643,
            "eos_token_id": 151643,
            "hidden_act": "silu",
            "hidden_size": 896,
            "initializer_range": 0.02,
            "intermediate_size": 4864,
            "max_position_embeddings": 32768,
            "max_window_layers": 24,
            "model_type": "qwen2",
            "num_attention_heads": 14,
            "num_hidden_layers": 24,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-06,
            "rope_theta": 1000000.0,
            "sliding_window": 32768,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "use_mrope": False,
            "use_sliding_window": False,
            "vocab_size": 151936,
        },
        {
            "layers": 24,
            "head_dim": 64,
            "qkv_bias": True,
            "o_bias": False,
            "plan": (Layer(),) * 24,
            "ropes": (Rope(1e6, 64),),
        },
    ),
    "Qwen3-0.6B": (
        {
            "architectures": ["Qwen3ForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 151643,
            "eos_token_id": 151645,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "max_position_embeddings": 40960,
            "max_window_layers": 28,
            "model_type": "qwen3",
            "num_attention_heads": 16,
            "num_hidden_layers": 28,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-06,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "sliding_window": None,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "use_sliding_window": False,
            "vocab_size": 151936,
        },
        {"layers": 28, "head_dim": 128, "head_norm": "each", "qkv_bias": False, "max_positions": 40960},
    ),
    "Mistral-7B-v0.3": (
        {
            "architectures": ["MistralForCausalLM"],
            "attention_dropout": 0.0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "max_position_embeddings": 32768,
            "model_type": "mistral",
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05,
            "rope_theta": 1000000.0,
            "sliding_window": None,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "vocab_size": 32768,
        },
        {"layers": 32, "head_dim": 128, "plan": (Layer(),) * 32, "tie_embeddings": False, "qkv_bias": False},
    ),
    "TinyLlama-1.1B": (
        {
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "max_position_embeddings": 2048,
            "model_type": "llama",
            "num_attention_heads": 32,
            "num_hidden_layers": 22,
            "num_key_value_heads": 4,
            "pretraining_tp": 1,
            "rms_norm_eps": 1e-05,
            "rope_scaling": None,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "vocab_size": 32000,
        },
        {"layers": 22, "head_dim": 64, "kv_heads": 4, "ropes": (Rope(1e4, 64),), "max_positions": 2048},
    ),
    "SmolLM2-135M": (
        {
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "hidden_act": "silu",
            "hidden_size": 576,
            "intermediate_size": 1536,
            "is_llama_config": True,
            "max_position_embeddings": 8192,
            "mlp_bias": False,
            "model_type": "llama",
            "num_attention_heads": 9,
            "num_hidden_layers": 30,
            "num_key_value_heads": 3,
            "pretraining_tp": 1,
            "rms_norm_eps": 1e-05,
            "rope_interleaved": False,
            "rope_scaling": None,
            "rope_theta": 100000,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "vocab_size": 49152,
        },
        {"layers": 30, "heads": 9, "kv_heads": 3, "head_dim": 64, "ropes": (Rope(1e5, 64),), "tie_embeddings": True},
    ),
}


@pytest.mark.parametrize(("values", "expected"), PUBLISHED.values(), ids=PUBLISHED)
def test_configs_as_published(tmp_path: Path, values: dict[str, Any], expected: dict[str, Any]) -> None:
    config = read(tmp_path, values)
    assert {name: getattr(config, name) for name in expected} == expected
    assert config.dtype == "bfloat16"
    # As transformers 5 writes it again.
    plan = (values.get("rope_scaling") or {"rope_type": "default"}) | {"rope_theta": values["rope_theta"]}
    layers = ["full_attention"] * values["num_hidden_layers"]
    changes: dict[str, Any] = {"rope_theta": ..., "rope_scaling": ..., "torch_dtype": ..., "layer_types": layers}
    assert read(tmp_path, values, **changes, dtype="bfloat16", rope_parameters=plan) == config


def test_rope_parameters_say_the_same_as_the_older_fields(tmp_path: Path) -> None:
    old = read(tmp_path, rope_scaling=LLAMA3)
    new = read(tmp_path, rope_theta=..., rope_parameters=LLAMA3 | {"rope_theta": 500000.0})
    assert new == old


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
    smollm3 = {"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "num_hidden_layers": 8}
    assert [layer.rope for layer in read(tmp_path, **smollm3).plan] == [0, 0, 0, None, 0, 0, 0, None]
    marked = read(tmp_path, **smollm3, no_rope_layers=[0, 1] * 4)
    assert [layer.rope for layer in marked.plan] == [None, 0] * 4


def test_which_layers_have_experts(tmp_path: Path) -> None:
    moe = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": 4}
    config = read(tmp_path, **moe, num_experts=16, decoder_sparse_step=2, mlp_only_layers=[3], norm_topk_prob=True)
    assert [layer.experts for layer in config.plan] == [False, True, False, False]
    assert config.experts == Experts(16, 8, 768, True)
    # transformers 5 writes the number under its other name
    assert read(tmp_path, **moe, num_local_experts=12).experts == Experts(12, 8, 768, False)


def test_context_up_to_the_model_and_not_beyond(tmp_path: Path) -> None:
    config = read(tmp_path, max_position_embeddings=8192)
    assert config.choose_context(0) == DEFAULT_CONTEXT
    assert config.choose_context(8192) == 8192
    with pytest.raises(CheckpointError, match=r"max_position_embeddings: is 8192, 8193"):
        config.choose_context(8193)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, r"architectures: \['GemmaForCausalLM'\] is not supported"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures: .*not supported"),
        ({"architectures": ..., "model_type": "gpt2"}, "model_type: 'gpt2' is not supported"),
        ({"architectures": ..., "model_type": ["llama"]}, "model_type: .*not supported"),
        ({"hidden_size": "64"}, "hidden_size: '64' is not an integer"),
        ({"hidden_size": True}, "hidden_size: True is not an integer"),
        ({"num_hidden_layers": ...}, "num_hidden_layers: None is not an integer"),
        ({"vocab_size": 1 << 40}, "vocab_size: .*not an integer from 1"),
        ({"num_key_value_heads": 5}, "num_key_value_heads: 5 does not divide num_attention_heads, 32"),
        ({"head_dim": 63}, "head_dim: 63 is odd"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu' is not supported"),
        ({"mlp_bias": True}, "mlp_bias: True is not supported"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings: 'yes' is neither true nor false"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5 is not supported"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": "4"}}, "rope_scaling.factor: '4' is not a positive number"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "power": 2}}, "rope_scaling.power: 2 is not supported"),
        ({"rope_scaling": {"type": "default", "mrope_section": [16, 24]}}, "rope_scaling.mrope_section: .*not supp"),
        ({"rope_scaling": {"type": "longrope", "long_factor": [1.0]}}, "short_factor: is not a list of 32 numbers"),
        ({"rope_theta": 1}, "rope_theta: 1.0 is not above 1"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "rope_scaling.low_freq_factor: None is not"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}, "rope_scaling.high_freq_factor: 4.0 is not above"),
        ({"rope_scaling": 4.0}, "rope_scaling: is not an object"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling.rope_type: 'dynamic' is not supported"),
        ({"rope_scaling": {"rope_type": None, "type": "ntk"}}, "rope_scaling.rope_type: 'ntk' is not supported"),
        ({"rope_scaling": LLAMA3, "rope_parameters": {"rope_theta": 1e4}}, "rope_scaling: says something else"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "rope_parameters.full_attention: positions"),
        ({"layer_types": ["full_attention"] * 15 + ["linear_attention"]}, "layer_types: is not 'full_attention' or"),
        ({"layer_types": ["full_attention"] * 15}, "layer_types: .* for each of 16 layers"),
        ({"hidden_act": None, "hidden_activation": "gelu_pytorch_tanh"}, "hidden_activation: 'gelu_pytorch_tanh'"),
        ({"architectures": ["MistralForCausalLM"], "attention_bias": True}, "attention_bias: .* for mistral"),
        ({"architectures": ["Qwen2ForCausalLM"], "attention_bias": False}, "attention_bias: .* for qwen2"),
        ({"attention_multiplier": 0.015625}, "attention_multiplier: 0.015625 is not supported, only 1"),
        ({"embedding_multiplier": 12.0}, "embedding_multiplier: 12.0 is not supported, only 1"),
        ({"residual_multiplier": 0}, "residual_multiplier: 0 is not supported, only 1"),
        ({"residual_multiplier": 0.22}, "residual_multiplier: 0.22 is not supported, only 1"),
        ({"logits_scaling": 8.0}, "logits_scaling: 8.0 is not supported, only 1"),
        ({"logit_scale": 0.0625}, "logit_scale: 0.0625 is not supported, only 1"),
        ({"scale_emb": 12}, "scale_emb: 12 is not supported, only 1"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: 50.0 is not supported"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping: 30.0 is not supported"),
        ({"clip_qkv": 8.0}, "clip_qkv: 8.0 is not supported"),
        ({"rope_interleaved": True}, "rope_interleaved: True is not supported"),
        ({"use_mrope": True}, "use_mrope: True is not supported"),
        ({"no_rope_layers": [1, 1, 1, 0]}, "no_rope_layers: .* is not supported"),
        ({"num_local_experts": 8}, "num_local_experts: 8 is not supported"),
        ({"rotary_pct": 0.25}, "rotary_pct: 0.25 is not supported, only 1"),
        ({"rope_parameters": {"rope_type": "mrope"}}, "rope_parameters.rope_type: 'mrope'"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps: nan is not a positive number"),
        ({"torch_dtype": "float8_e4m3fn"}, "dtype: 'float8_e4m3fn' is not supported"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quant_method: 'fp8' is not supported"),
        ({"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}}, "quantization.mode: 'mxfp4'"),
        ({"quantization": {"group_size": 64, "bits": 7}}, "quantization.bits: 7 is not supported"),
        ({"quantization": {"group_size": 7, "bits": 4}}, "quantization.group_size: 7"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_refused_by_name(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        read(tmp_path, **changes)
    assert caught.value.file == str(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "no such file"), ("{", "is not JSON"), ("[]", "is not a JSON object"), ("[" * 100_000, "is not JSON")],
)
def test_unreadable_config(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=words):
        ModelConfig.from_dir(tmp_path)


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_made_checkpoints_parse(tmp_path: Path, family: Any) -> None:
    config = ModelConfig.from_dir(make_checkpoint(tmp_path, family, rope_scaling=LLAMA3_SCALING))
    assert (config.family, config.layers, config.hidden_size, config.vocab_size) == (family, 2, 64, 512)
    assert isinstance(config.ropes[0].scaling, Llama3)


def test_the_maker_and_the_reader_know_the_same_families() -> None:
    assert {name: family.architecture for name, family in FAMILIES.items()} == ARCHITECTURES
