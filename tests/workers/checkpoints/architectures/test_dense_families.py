"""The config.json of families that are not like Llama's: as published, and what is refused by name."""

from pathlib import Path
from typing import Any

import pytest

from tests.workers.checkpoints.architectures.configs import read
from workers.checkpoints.architectures.parts import LayerConfig, Norms
from workers.checkpoints.architectures.rope import Rope
from workers.checkpoints.json_files import CheckpointError

# From memory; what says nothing of the model's shape is left out.
PYTHIA: dict[str, Any] = {
    "architectures": ["GPTNeoXForCausalLM"],
    "hidden_act": "gelu",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "use_parallel_residual": True,
    "vocab_size": 50304,
}
PHI2: dict[str, Any] = {
    "architectures": ["PhiForCausalLM"],
    "hidden_act": "gelu_new",
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "phi",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "partial_rotary_factor": 0.4,
    "qk_layernorm": False,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "vocab_size": 51200,
}
FALCON7B: dict[str, Any] = {
    "alibi": False,
    "architectures": ["FalconForCausalLM"],
    "bias": False,
    "hidden_size": 4544,
    "layer_norm_epsilon": 1e-05,
    "model_type": "falcon",
    "multi_query": True,
    "new_decoder_architecture": False,
    "num_attention_heads": 71,
    "num_hidden_layers": 32,
    "parallel_attn": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 65024,
}
R7B: dict[str, Any] = {
    "architectures": ["Cohere2ForCausalLM"],
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "layer_norm_eps": 1e-05,
    "logit_scale": 0.25,
    "max_position_embeddings": 132096,
    "model_type": "cohere2",
    "num_attention_heads": 32,
    "num_hidden_layers": 4,
    "num_key_value_heads": 8,
    "rope_theta": 50000,
    "rotary_pct": 1.0,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
    "torch_dtype": "bfloat16",
    "use_qk_norm": False,
    "vocab_size": 256000,
}
MINISTRAL3: dict[str, Any] = {
    "architectures": ["Ministral3ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 8,
    "num_hidden_layers": 2,
    "vocab_size": 512,
}
EXAONE4: dict[str, Any] = MINISTRAL3 | {
    "architectures": ["Exaone4ForCausalLM"],
    "layer_types": ["full_attention"] * 2,
    "num_key_value_heads": 8,
    "sliding_window": None,
    "sliding_window_pattern": None,
}
ERNIE: dict[str, Any] = MINISTRAL3 | {
    "architectures": ["Ernie4_5ForCausalLM"],
    "head_dim": 8,
    "max_position_embeddings": 131072,
    "model_type": "ernie4_5",
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 500000,
    "use_bias": False,
}
FALCON40B = FALCON7B | {"hidden_size": 8192, "new_decoder_architecture": True, "num_kv_heads": 8} | {
    "num_attention_heads": 128
}  # fmt: skip


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            PYTHIA,
            {"parallel": True, "gated": False, "activation": "gelu", "qkv_layout": "heads", "kv_heads": 12}
            | {"qkv_bias": True, "o_bias": True, "mlp_bias": True, "ropes": (Rope(1e4, 16),), "norm_biases": True},
        ),
        (PYTHIA | {"use_parallel_residual": False, "hidden_act": "gelu_fast"}, {"parallel": False}),
        (PHI2, {"head_dim": 80, "ropes": (Rope(1e4, 32),), "head_bias": True, "o_bias": True, "parallel": True}),
        (
            FALCON7B,
            {"kv_heads": 1, "ffn": 18176, "head_dim": 64, "norms": Norms("input_layernorm"), "qkv_layout": "parts"}
            | {"mlp_bias": False, "tie_embeddings": True},
        ),
        (
            FALCON40B,
            {"kv_heads": 8, "ffn": 32768, "qkv_layout": "kv_heads"}
            | {"norms": Norms("ln_attn", before_mlp="ln_mlp"), "parallel": True},
        ),
        (
            R7B,
            {"logits_scaling": 4.0, "interleaved_rope": True, "norm_kind": "layer", "norm_biases": False}
            | {"plan": (*(LayerConfig(4096),) * 3, LayerConfig(None, None)), "head_norm": None},
        ),
        (R7B | {"layer_types": ["full_attention"] * 4}, {"plan": (LayerConfig(None, None),) * 4}),
        (EXAONE4, {"plan": (LayerConfig(),) * 2}),
        (EXAONE4 | {"sliding_window": 4096}, {"plan": (LayerConfig(None, None),) * 2}),
        (ERNIE, {"family": "ernie4_5", "tie_embeddings": True, "interleaved_rope": True, "o_bias": False}),
        (ERNIE | {"architectures": ["Ernie4_5_ForCausalLM"]}, {"family": "ernie4_5"}),
        (MINISTRAL3, {"max_positions": 16384}),
    ],
    ids=[
        *("pythia", "serial", "phi-2", "falcon-7b", "falcon-40b", "r7b", "r7b-global", "exaone-1.2b", "exaone-global"),
        *("ernie", "ernie-by-its-earlier-name", "ministral-3"),
    ],
)
def test_configs_are_read(tmp_path: Path, values: dict[str, Any], expected: dict[str, Any]) -> None:
    config = read(tmp_path, values)
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("values", "changes", "problem"),
    [
        (FALCON7B, {"alibi": True}, "alibi: True is not supported, only 0"),
        (FALCON7B, {"activation": "relu"}, "activation: 'relu' is not supported, only 'gelu'"),
        (FALCON40B, {"num_kv_heads": 5}, "num_kv_heads: 5 does not divide num_attention_heads, 128"),
        (PHI2, {"qk_layernorm": True}, "qk_layernorm: True is not supported, only 0"),
        (PYTHIA, {"hidden_act": "relu"}, "hidden_act: 'relu' is not supported, only 'gelu'"),
        (PYTHIA, {"layer_norm_eps": 0}, "layer_norm_eps: 0 is not a number from 1e-15 to 1e[+]15"),
        (R7B, {"sliding_window": None}, "sliding_window: is missing: layers with positions are those with a window"),
        (R7B, {"use_qk_norm": True}, "use_qk_norm: True is not supported, only 0"),
        (R7B, {"logit_scale": "1"}, "logit_scale: '1' is not a number"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_supported_is_refused_by_its_name_in_the_file(
    tmp_path: Path, values: dict[str, Any], changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(CheckpointError, match=problem):
        read(tmp_path, values, **changes)
