"""Models as they are on the hub are described as they are."""

from pathlib import Path
from typing import Any

import pytest

from tests.workers.checkpoints.architectures.configs import LLAMA, LLAMA3, read
from workers.checkpoints.architectures.parts import Layer
from workers.checkpoints.architectures.rope import Rope

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
