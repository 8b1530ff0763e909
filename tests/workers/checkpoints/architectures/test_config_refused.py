"""Refused fields of config.json: every error names its file and field."""

from pathlib import Path
from typing import Any

import pytest

from tests.workers.checkpoints.architectures.configs import LLAMA3, read
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig

GLM_4_5: dict[str, Any] = {
    "architectures": ["Glm4MoeForCausalLM"],
    "n_routed_experts": 16,
    "num_experts_per_tok": 6,
    "n_shared_experts": 1,
}
ERNIE: dict[str, Any] = {"architectures": ["Ernie4_5_MoeForCausalLM"], "moe_num_experts": 16}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["MambaForCausalLM"]}, r"architectures: \['MambaForCausalLM'\] is not supported"),
        ({"architectures": ["JambaForCausalLM"]}, r"\['JambaForCausalLM'\] is not supported"),
        ({"architectures": ["GraniteForCausalLM"], "num_local_experts": 8}, "num_local_experts: 8 is not supported"),
        ({"architectures": ["GraniteForCausalLM"], "mlp_bias": True}, "mlp_bias: True is not supported"),
        ({"architectures": ["GraniteForCausalLM"], "logits_scaling": 0}, "logits_scaling: 0 is not a number from"),
        ({"architectures": ["GraniteForCausalLM"], "logit_scale": 0.5}, "logit_scale: 0.5 is not supported, only 1"),
        ({"architectures": ["LlamaForTokenClassification"]}, "architectures: .*not supported"),
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
        ({"rope_scaling": {"rope_type": "yarn", "factor": "4"}}, "rope_scaling.factor: '4' is not a number from"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 1e16}}, "rope_scaling.factor: 1e.16 is not a number from"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 1e308}},
            "beta_fast: 1e.308 is not a number",
        ),
        ({"rope_scaling": {"rope_type": "linear", "factor": 1e-300}}, "rope_scaling.factor: 1e-300 is not a number"),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, "rope_scaling.rope_type: .* is not supported"),
        ({"num_hidden_layers": 4097}, "num_hidden_layers: 4097 is not an integer from 1 to 4096"),
        (
            {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4097},
            "num_local_experts: 4097 is not an integer from 1 to 4096",
        ),
        (GLM_4_5 | {"scoring_func": "softmax"}, "scoring_func: 'softmax' is not supported, only 'sigmoid'"),
        (GLM_4_5 | {"n_group": 3}, "n_group: 3 groups of 16 experts are not equal"),
        (GLM_4_5 | {"n_group": 16}, "n_group: 16 groups of 16 experts are not equal, or of fewer than 2"),
        (GLM_4_5 | {"n_group": 4, "topk_group": 5}, "topk_group: 5 of 4 groups of 4 experts do not leave 6"),
        (GLM_4_5 | {"n_group": 4, "topk_group": 1}, "topk_group: 1 of 4 groups of 4 experts do not leave 6"),
        (GLM_4_5 | {"first_k_dense_replace": -1}, "first_k_dense_replace: -1 is not a number of layers"),
        (GLM_4_5 | {"n_shared_experts": "1"}, "n_shared_experts: '1' is not an integer from 1"),
        (GLM_4_5 | {"num_nextn_predict_layers": -1}, "num_nextn_predict_layers: -1 is not a number of layers"),
        (ERNIE | {"moe_gate_act": "sigmoid"}, "moe_gate_act: 'sigmoid' is not supported, only 'softmax'"),
        (ERNIE | {"moe_layer_start_index": [1, 1]}, "moe_layer_start_index: .* is not the number of a layer"),
        (ERNIE | {"use_bias": True}, "use_bias: is not supported for ernie4_5_moe"),
        (
            {"architectures": ["PhiMoEForCausalLM"], "num_local_experts": 16, "num_experts_per_tok": 4},
            "tok: 4 .* only 2",
        ),
        ({"n_routed_experts": 8}, "n_routed_experts: 8 is not supported, only 0"),
        ({"routed_scaling_factor": 2.5}, "routed_scaling_factor: 2.5 is not supported, only 1"),
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
        ({"architectures": ["SeedOssForCausalLM"], "attention_out_bias": True}, "attention_out_bias: True is not supp"),
        ({"attention_multiplier": 0.015625}, "attention_multiplier: 0.015625 is not supported, only 1"),
        ({"embedding_multiplier": 12.0}, "embedding_multiplier: 12.0 is not supported, only 1"),
        ({"residual_multiplier": 0}, "residual_multiplier: 0 is not supported, only 1"),
        ({"residual_multiplier": 0.22}, "residual_multiplier: 0.22 is not supported, only 1"),
        ({"logits_scaling": 8.0}, "logits_scaling: 8.0 is not supported, only 1"),
        ({"logit_scale": 0.0625}, "logit_scale: 0.0625 is not supported, only 1"),
        ({"scale_emb": 12}, "scale_emb: 12 is not supported, only 1"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: 50.0 is not supported"),
        (
            {"architectures": ["Gemma3ForCausalLM"], "hidden_act": None, "attn_logit_softcapping": 50.0},
            "attn_logit_softcapping: 50.0 is not supported",
        ),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping: 30.0 is not supported"),
        ({"clip_qkv": 8.0}, "clip_qkv: 8.0 is not supported"),
        ({"rope_interleaved": True}, "rope_interleaved: True is not supported"),
        ({"use_mrope": True}, "use_mrope: True is not supported"),
        ({"no_rope_layers": [1, 1, 1, 0]}, "no_rope_layers: .* is not supported"),
        ({"num_local_experts": 8}, "num_local_experts: 8 is not supported"),
        ({"rotary_pct": 0.25}, "rotary_pct: 0.25 is not supported, only 1"),
        ({"rope_parameters": {"rope_type": "mrope"}}, "rope_parameters.rope_type: 'mrope'"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps: nan is not a number from"),
        ({"torch_dtype": "float8_e4m3fn"}, "dtype: 'float8_e4m3fn' is not supported"),
        ({"quantization_config": {"quant_method": "hqq"}}, "quant_method: 'hqq' is not supported"),
        ({"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp2"}}, "quantization.mode: 'mxfp2'"),
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
