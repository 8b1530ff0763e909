"""What config.json may say, what is refused, and that every error names its file and field."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import LLAMA3_SCALING, make_checkpoint
from workers.checkpoint import (
    DEFAULT_CONTEXT,
    CheckpointError,
    ModelConfig,
    RopeScaling,
    config_digest,
    resolve_model,
)

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
    assert config.rope_scaling == RopeScaling("llama3", 32.0, 1.0, 4.0, 8192)
    assert (config.rope_theta, config.tie_embeddings, config.dtype) == (500000.0, True, "bfloat16")
    assert (config.qkv_bias, config.o_bias, config.qk_norm) == (False, False, False)


def test_rope_parameters_say_the_same_as_the_older_fields(tmp_path: Path) -> None:
    old = read(tmp_path, rope_scaling=LLAMA3)
    new = read(tmp_path, rope_theta=..., rope_parameters=LLAMA3 | {"rope_theta": 500000.0})
    assert new == old


@pytest.mark.parametrize(
    ("plan", "scaling"),
    [
        (None, None),
        ({"rope_type": "default"}, None),
        ({"type": "linear", "factor": 2.0}, RopeScaling("linear", 2.0)),
    ],
)
def test_rope_scaling(tmp_path: Path, plan: Any, scaling: RopeScaling | None) -> None:
    assert read(tmp_path, rope_scaling=plan).rope_scaling == scaling


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
    assert (config.family, config.qkv_bias, config.o_bias, config.sliding_window) == ("qwen2", True, False, None)


def test_qwen3_has_query_and_key_norms(tmp_path: Path) -> None:
    config = read(tmp_path, architectures=["Qwen3ForCausalLM"], model_type="qwen3", head_dim=...)
    assert (config.family, config.qk_norm, config.qkv_bias, config.head_dim) == ("qwen3", True, False, 128)


def test_attention_bias_covers_the_output_projection(tmp_path: Path) -> None:
    config = read(tmp_path, attention_bias=True)
    assert config.qkv_bias
    assert config.o_bias


@pytest.mark.parametrize(
    ("family", "changes", "window"),
    [
        ("Mistral", {"sliding_window": 4096}, 4096),
        ("Mistral", {"sliding_window": None}, None),
        ("Qwen2", {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 15}, 4096),
        ("Qwen2", {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 16}, None),
    ],
)
def test_sliding_window(tmp_path: Path, family: str, changes: dict[str, Any], window: int | None) -> None:
    config = read(tmp_path, architectures=[f"{family}ForCausalLM"], model_type=family.lower(), **changes)
    assert config.sliding_window == window


def test_context_up_to_the_window_and_not_beyond(tmp_path: Path) -> None:
    config = read(tmp_path, architectures=["MistralForCausalLM"], sliding_window=1024)
    assert config.choose_context(0) == 1024
    assert config.choose_context(1024) == 1024
    with pytest.raises(CheckpointError, match=r"sliding_window: .*1024 at most, 1025"):
        config.choose_context(1025)


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
        ({"mlp_bias": True}, "mlp_bias: biases in the MLP are not supported"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings: 'yes' is neither true nor false"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: is not supported"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling.rope_type: 'yarn' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "rope_scaling.low_freq_factor: None is not"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}, "rope_scaling.high_freq_factor: 4.0 is not above"),
        ({"rope_scaling": 4.0}, "rope_scaling: is not an object"),
        ({"rope_parameters": {"full_attention": {}, "rope_type": "mrope"}}, "rope_parameters.rope_type: 'mrope'"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps: nan is not a positive number"),
        ({"torch_dtype": "float8_e4m3fn"}, "dtype: 'float8_e4m3fn' is not supported"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quant_method: 'gptq' is not supported"),
        ({"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}}, "quantization.mode: 'mxfp4'"),
        ({"quantization": {"group_size": 64, "bits": 3}}, "quantization.bits: 3 is not supported"),
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


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_made_checkpoints_parse(tmp_path: Path, family: Any) -> None:
    config = ModelConfig.from_dir(make_checkpoint(tmp_path, family, rope_scaling=LLAMA3_SCALING))
    assert (config.family, config.layers, config.hidden_size, config.vocab_size) == (family, 2, 64, 512)
    assert config.rope_scaling is not None


def test_digest_is_of_the_content(tmp_path: Path) -> None:
    first = make_checkpoint(tmp_path / "a", seed=1)
    same = make_checkpoint(tmp_path / "b", seed=1)
    other = make_checkpoint(tmp_path / "c", seed=2)
    assert config_digest(first) == config_digest(same)
    assert config_digest(first) != config_digest(other)


def test_local_model_resolves_to_itself(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["./nowhere", "nowhere", "/no/such/model", "a/b/c", "~/none", ""])
def test_what_is_neither_directory_nor_hub_id(name: str) -> None:
    with pytest.raises(CheckpointError, match="no such directory, and it is not a hub id"):
        resolve_model(name)


def test_hub_failure_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> str:
        raise ConnectionError("Network is unreachable\nand more")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(CheckpointError, match=r"some/model: is not a local directory .*Network is unreachable$"):
        resolve_model("some/model")


def test_hub_model_resolves_to_its_snapshot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []

    def download(name: str, **_: object) -> str:
        asked.append(name)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert resolve_model("some/model") == tmp_path
    assert asked == ["some/model"]
