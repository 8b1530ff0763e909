"""Configurations and tensors of GGUF files, beside those of the checkpoints that they were made from."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from tests.checkpoints import LLAMA3_SCALING, make_checkpoint
from tests.reference.layers import gemma4_layers
from tests.reference.layers.mamba_layers import NEMOTRON_LATENTS
from tests.workers.checkpoints.gguf import gguf_files
from tests.workers.checkpoints.gguf.conversions import converted
from tests.workers.checkpoints.gguf.gguf_files import make_gguf, write_gguf
from workers.checkpoints.architectures.tensors import check_tensors
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig, config_digest, open_weights, same_text
from workers.checkpoints.gguf.layouts.latent import MINICPM3

GPT_OSS = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "truncate": False}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.5] * 4, "long_factor": [2.0, 3.5] * 4}
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "ernie4_5_moe": {"tied": True},
    "gemma": {},
    # What no file states follows from llama.cpp's rules.
    "gemma2": {"fields": {"query_pre_attn_scalar": 16}},
    "gemma3_text": {"fields": {"query_pre_attn_scalar": 16}, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    "gemma4_text": {"layers": 4},
    "gemma4_text-experts": {"fields": gemma4_layers.EXPERTS},
    "glm4_moe": {"tied": False},
    "gpt_oss": {"tied": False, "rope_scaling": GPT_OSS},
    "granite": {"attention_bias": True},
    "llama": {"tied": False, "attention_bias": True},
    "mistral": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}},
    "mixtral": {"tied": False},
    "olmo2": {"tied": False},
    "olmo3": {},
    "phi3": {"rope_scaling": LONG, "fields": {"sliding_window": 24}},
    "qwen2": {},
    "qwen2_moe": {"tied": False},
    "qwen3": {"head_dim": 32},
    "qwen3_moe": {"fields": {"norm_topk_prob": True}},
    "seed_oss": {"tied": False},
    "smollm3": {"layers": 4, "fields": {"no_rope_layers": [1, 1, 1, 0]}},
    "starcoder2": {"fields": {"sliding_window": None}},
    "stablelm": {},
    "gpt_neox": {"tied": False, "kv_heads": 4},
    "cohere": {},
    "cohere2": {"layers": 4, "fields": {"sliding_window_pattern": 4}},
    "phi": {"tied": False},
    "exaone4": {"fields": {"layer_types": ["sliding_attention", "full_attention"]}},
    "nemotron": {"tied": False},
    "olmo": {},
    "arcee": {"attention_bias": True},
    "ernie4_5": {},
    "ministral3": {},
    "glm4": {},
    "lfm2": {},
    "lfm2_moe": {"fields": {"routed_scaling_factor": 1.0}},
    "qwen3_5_text": {},
    "qwen3_5_moe_text": {},
    "qwen3_next": {},
    "olmoe": {},
    "granitemoe": {},
    "granitemoeshared": {},
    "granitemoehybrid-experts": {"fields": {"num_local_experts": 6, "num_experts_per_tok": 3}},
    "deepseek_v2": {"tied": False},
    "deepseek_v3": {"tied": False},
    "minicpm3": {"fields": MINICPM3},
    "nemotron_h": {"tied": False, "layers": 3},
    "nemotron_h-experts": {
        "tied": False,
        "layers": 3,
        "fields": NEMOTRON_LATENTS | {"hybrid_override_pattern": "M*E"},
    },
    "phimoe": {"tied": False, "fields": {"router_jitter_noise": 0.01}},
}
"""Arguments of the checkpoint of each family; behind a hyphen is another case of it."""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_is_the_checkpoint_that_it_was_made_from(tmp_path: Path, family: str) -> None:
    case, family = family, family.partition("-")[0]
    path = make_checkpoint(tmp_path / "model", family, **FAMILIES[case])
    file = make_gguf(path, tmp_path / "model.gguf")
    made, expected = ModelConfig.from_dir(file), ModelConfig.from_dir(path)
    if family == "mistral":  # one architecture with Llama
        expected = replace(expected, family="llama")
    if family == "qwen3_next":  # its gated delta network has the tensors of Qwen3.5's in a file
        expected = replace(expected, family="qwen3_5_moe_text", names=made.names)
    if family.startswith("granitemoe"):  # the gates of a shared expert are apart in a file
        expected = replace(expected, names=made.names)
    if made.latent is not None and made.latent.apart:  # so are the matrices of keys and values
        assert expected.latent is not None
        expected = replace(expected, latent=replace(expected.latent, apart=True))
    later = expected.other_tensors if family == "glm4_moe" else ()  # layers that predict further tokens
    assert made == replace(expected, other_tensors=() if later else expected.other_tensors)
    weights, original = open_weights(file), dict(open_weights(path))
    check_tensors(weights, made, file, weights.adds_nothing)
    if family == "qwen3_next":
        original = dict(_split_gates(json.loads((path / "config.json").read_text()), original))
    original = dict(_taken_apart(made, original))
    original = {name: tensor for name, tensor in original.items() if not name.startswith(later or "\0")}
    assert set(weights) == set(original)
    for name, tensor in original.items():
        # The offset of a norm was added and is taken away again, and the logarithm of a decay taken and undone.
        near = 1e-6 if name.endswith("A_log") else 2e-7 if made.norm_offset else 0
        np.testing.assert_allclose(weights[name], tensor, atol=near, rtol=0, err_msg=name)
        assert weights.shape(name) == tensor.shape
    assert same_text(path, file)


def _taken_apart(config: ModelConfig, tensors: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the tensors as files have them that hold parts of some apart."""
    for name, tensor in tensors.items():
        prefix, latent = name.rpartition("self_attn.kv_b_proj")[0] + "self_attn.", config.latent
        if ".kv_b_proj." in name and latent is not None and latent.apart:
            heads = tensor.reshape(config.heads, -1, latent.rank)
            keys, values = np.split(heads, [latent.passed], axis=1)
            yield f"{prefix}embed_q.weight", keys.swapaxes(1, 2).reshape(-1, latent.passed)
            yield f"{prefix}unembed_out.weight", values.reshape(-1, latent.rank)
        elif ".shared_mlp.input_linear." in name:
            for part, values in zip(config.names.experts.shared_gate_up, np.split(tensor, 2), strict=True):
                yield name.replace("shared_mlp.input_linear", part), values
        else:
            yield name, tensor


def _split_gates(config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the tensors of a Qwen3-Next by the names that Qwen3.5 has: strengths and decays apart."""
    for name, tensor in tensors.items():
        if not name.endswith("in_proj_ba.weight"):
            yield from ((part, values) for part, values in converted(config, name, tensor) if "in_proj" in part)
            if "in_proj" not in name:
                yield name, tensor
            continue
        groups = config["linear_num_key_heads"]
        split = tensor.reshape(groups, 2, -1, tensor.shape[1])
        for at, end in enumerate("ba"):
            yield name.replace("_ba.", f"_{end}."), split[:, at].reshape(-1, tensor.shape[1])


def test_quantized_value_heads_are_ordered_with_their_scales(tmp_path: Path) -> None:
    fields = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_value_head_dim": 32}
    path = make_checkpoint(tmp_path / "model", "qwen3_5_text", fields=fields)
    weights, plain = (
        open_weights(make_gguf(path, tmp_path / f"{kind.name}.gguf", kind)) for kind in (Type.Q8_0, Type.F32)
    )
    for name in ("in_proj_qkv", "in_proj_z", "out_proj"):
        tensor = f"model.layers.0.linear_attn.{name}.weight"
        restored = weights.take_quantized(tensor, plain.shape(tensor)).dequantize()
        np.testing.assert_allclose(restored, plain[tensor], atol=0.02 * np.abs(plain[tensor]).max())
    for name in ("in_proj_a", "in_proj_b"):
        assert weights.format(f"model.layers.0.linear_attn.{name}.weight") is None


def test_value_heads_narrower_than_a_group_are_not_quantized(tmp_path: Path) -> None:
    """Their columns are in another order, and would take scales apart."""
    fields = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_value_head_dim": 16}
    path = make_checkpoint(tmp_path / "model", "qwen3_5_text", fields=fields)
    weights = open_weights(make_gguf(path, tmp_path / "model.gguf", Type.Q8_0))
    assert weights.format("model.layers.0.linear_attn.out_proj.weight") is None
    assert weights.format("model.layers.0.linear_attn.in_proj_z.weight") is not None


def test_layers_that_only_predict_several_tokens_are_left_out(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model", "qwen3_5_text", layers=3)
    made = make_gguf(path, tmp_path / "model.gguf", metadata={"qwen35.nextn_predict_layers": 1})
    assert ModelConfig.from_dir(made).layers == 2
    assert not any(name.startswith("model.layers.2.") for name in open_weights(made))


def test_the_divisors_of_llama_3(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model", rope_scaling=LLAMA3_SCALING)
    made = ModelConfig.from_dir(make_gguf(path, tmp_path / "model.gguf")).ropes[0]
    for context in (16, 4096):
        expected, factor = ModelConfig.from_dir(path).ropes[0].frequencies(context)
        frequencies, own = made.frequencies(context)
        np.testing.assert_allclose(frequencies, expected, rtol=2e-7)  # they are in the file in float32
        assert factor == own == 1.0


@pytest.mark.parametrize(("layers", "scalar"), [(46, 16.0), (2, 8.0)], ids=["27b", "smaller"])
def test_the_attention_scale_of_large_gemmas(tmp_path: Path, layers: int, scalar: float) -> None:
    path = make_checkpoint(tmp_path / "model", "gemma2", head_dim=8)
    config = ModelConfig.from_dir(make_gguf(path, tmp_path / "model.gguf", metadata={"gemma2.block_count": layers}))
    assert config.attention_scale == pytest.approx(scalar**-0.5)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("plain") / "model")


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("general.architecture", "rwkv7", "'rwkv7' is not supported, only llama, qwen2, qwen3,"),
        ("llama.block_count", None, "is missing"),
        ("llama.block_count", 1.5, "1.5 is not an integer from 1"),
        ("llama.attention.head_count", 0, "0 is not an integer from 1"),
        ("llama.attention.value_length", 32, "is not attention.key_length, 16"),
        ("llama.attention.clamp_kqv", 8.0, "8.0 is not supported for this architecture"),
        ("llama.rope.freq_base", -1.0, "-1.0 is not a number from"),
        ("llama.rope.scaling.type", "su", "'su' is not supported, only 'none', 'linear', 'yarn', 'longrope'"),
        ("llama.attention.layer_norm_rms_epsilon", None, "is missing"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_refused_by_its_key(
    checkpoint: Path, tmp_path: Path, key: str, value: object, problem: str
) -> None:
    file = make_gguf(checkpoint, tmp_path / "model.gguf", metadata={key: value})
    with pytest.raises(CheckpointError) as refused:
        ModelConfig.from_dir(file)
    assert str(refused.value).startswith(f"{file}: {key}: {problem}")


def test_the_digest_covers_all_that_decides_the_tokens(checkpoint: Path, tmp_path: Path) -> None:
    file = make_gguf(checkpoint, tmp_path / "model.gguf")
    first = config_digest(file)
    make_gguf(checkpoint, file, metadata={"tokenizer.chat_template": "other"})
    assert config_digest(file) != first
    other = make_checkpoint(tmp_path / "other", seed=1)
    assert config_digest(make_gguf(other, file)) != first


GRANITE_4: Mapping[str, Mapping[str, Any]] = {
    "nope": {},
    "rope": {"tied": False, "layers": 3, "fields": {"position_embedding_type": "rope", "mamba_conv_bias": False}},
}


@pytest.mark.parametrize("case", GRANITE_4)
def test_granite_4_without_experts(tmp_path: Path, case: str) -> None:
    path = make_checkpoint(tmp_path / "model", "granitemoehybrid", **GRANITE_4[case])
    file = make_gguf(path, tmp_path / "model.gguf")
    made, expected = ModelConfig.from_dir(file), ModelConfig.from_dir(path)
    assert made == replace(expected, names=made.names, ffn=96)
    weights, original = open_weights(file), dict(open_weights(path))
    check_tensors(weights, made, file, weights.adds_nothing)
    for name, tensor in original.items():
        block, mlp, part = name.partition(".shared_mlp.")
        if mlp:
            parts = ("gate_proj", "up_proj") if part == "input_linear.weight" else ("down_proj",)
            found = np.concatenate([weights[f"{block}.mlp.{each}.weight"] for each in parts])
        else:
            found = weights.take(name, tensor.shape)
        np.testing.assert_allclose(found, tensor, atol=2e-7, rtol=2e-7, err_msg=name)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("granitehybrid.attention.head_count_kv", [0, 1, 2], "is not one number, or 0, for each of 2 layers"),
        ("granitehybrid.attention.head_count_kv", [3, 2], "is not one number, or 0, for each of 2 layers"),
        ("granitehybrid.ssm.inner_size", 100, "100 is no multiple of embedding_length, 64"),
        ("granitehybrid.ssm.state_size", None, "is missing"),
    ],
    ids=str,
)
def test_granite_4_is_refused_by_its_key(tmp_path: Path, key: str, value: object, problem: str) -> None:
    path = make_checkpoint(tmp_path / "model", "granitemoehybrid")
    file = make_gguf(path, tmp_path / "model.gguf", metadata={key: value})
    with pytest.raises(CheckpointError) as refused:
        ModelConfig.from_dir(file)
    assert str(refused.value) == f"{file}: {key}: {problem}"


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("expert_gating_func", 1, "1 is not supported for this architecture, only 2"),
        ("nextn_predict_layers", 1, "a head for multi-token prediction is not supported for this architecture"),
    ],
)
def test_nemotron_h_with_experts_is_refused_by_its_key(tmp_path: Path, key: str, value: int, problem: str) -> None:
    path = make_checkpoint(tmp_path / "model", "nemotron_h", **FAMILIES["nemotron_h-experts"])
    file = make_gguf(path, tmp_path / "model.gguf", metadata={f"nemotron_h_moe.{key}": value})
    with pytest.raises(CheckpointError, match=rf"nemotron_h_moe\.{key}: {problem}"):
        ModelConfig.from_dir(file)


HUGE: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "gpt_neox": ({"embedding_length": 1 << 24}, "gptneox.embedding_length: 16777216 makes 50331648 rows, more than"),
    "qwen3_5_text": (
        {"ssm.group_count": 1 << 20, "ssm.time_step_rank": 1 << 20, "ssm.inner_size": 1 << 20, "ssm.state_size": 1},
        "qwen35.ssm.state_size: 1 makes 3145728 rows, more than 1048576",
    ),
    "qwen3_5_moe_text": ({"ssm.inner_size": (1 << 20) + 4}, "qwen35moe.ssm.inner_size: 1048580 makes 1048580 rows"),
    "qwen3_next": ({"ssm.time_step_rank": 1 << 20}, "qwen3next.ssm.time_step_rank: 1048576 makes 2097152 rows"),
}
"""Keys that ask for orders of absurdly many rows, and the errors."""


@pytest.mark.parametrize("family", HUGE)
def test_orders_of_absurdly_many_rows_are_refused(tmp_path: Path, family: str) -> None:
    keys, problem = HUGE[family]
    path = make_checkpoint(tmp_path / "model", family, **FAMILIES[family])
    prefix = problem.partition(".")[0]
    file = make_gguf(path, tmp_path / "model.gguf", metadata={f"{prefix}.{key}": each for key, each in keys.items()})
    with pytest.raises(CheckpointError) as refused:
        open_weights(file)
    assert str(refused.value).startswith(f"{file}: {problem}")


def test_absurdly_many_layers_and_heads_with_norms_are_refused(tmp_path: Path, checkpoint: Path) -> None:
    layers = make_gguf(checkpoint, tmp_path / "layers.gguf", metadata={"llama.block_count": 4097})
    with pytest.raises(CheckpointError, match=r"llama\.block_count: 4097 is more than 4096 layers"):
        ModelConfig.from_dir(layers)
    path = make_checkpoint(tmp_path / "model", "stablelm", fields={"qk_layernorm": True})
    heads = make_gguf(path, tmp_path / "heads.gguf", metadata={"stablelm.attention.head_count": 4097})
    with pytest.raises(CheckpointError, match="num_attention_heads: 4097 is not an integer from 1 to 4096"):
        ModelConfig.from_dir(heads)


def test_which_layers_are_recurrent_must_be_true_or_false(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model", "qwen3_5_text")
    file = make_gguf(path, tmp_path / "model.gguf", metadata={"qwen35.attention.recurrent_layers": [2, 0]})
    with pytest.raises(CheckpointError, match=r"recurrent_layers: is not a list of true and false for each of 2 lay"):
        ModelConfig.from_dir(file)


@pytest.mark.parametrize("value", [0.5, np.nan], ids=["positive", "nan"])
def test_a_decay_that_is_none_is_refused_by_its_tensor(tmp_path: Path, value: float) -> None:
    path = make_checkpoint(tmp_path / "model", "qwen3_5_text")
    name = "model.layers.0.linear_attn.A_log"
    stored = dict(open_weights(path))
    written = {"blk.0.ssm_a": np.full(stored[name].shape, value, np.float32)}

    def write(file: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Any], kind: Type) -> None:
        write_gguf(file, metadata, {**tensors, **written}, kind)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf_files, "write_gguf", write)
        weights = open_weights(make_gguf(path, tmp_path / "model.gguf"))
        with pytest.raises(CheckpointError, match=r"blk\.0\.ssm_a: has a value that is positive or no number"):
            weights[name]
        written["blk.0.ssm_a"] = np.zeros_like(stored[name], np.float32)
        assert np.all(open_weights(make_gguf(path, tmp_path / "model.gguf"))[name] == -np.inf), "it never decays"


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("attention.sliding_window_pattern", [True], "is not true or false for each of 2 layers"),
        ("attention.head_count_kv", [2, 2, 2], "is not an integer from 1 to"),
        ("attention.value_length_swa", 8, "is not attention.key_length_swa, 16"),
        ("feed_forward_length", [128, 64], "is not 128 for all layers, or twice as much for the last 0"),
        ("attention.logit_softcapping", 5.0, "5.0 is not supported for this architecture"),
    ],
    ids=str,
)
def test_gemma_4_is_refused_by_its_key(tmp_path: Path, key: str, value: object, problem: str) -> None:
    path = make_checkpoint(tmp_path / "model", "gemma4_text", fields=gemma4_layers.EXPERTS)
    file = make_gguf(path, tmp_path / "model.gguf", metadata={f"gemma4.{key}": value})
    with pytest.raises(CheckpointError) as refused:
        ModelConfig.from_dir(file)
    assert str(refused.value).startswith(f"{file}: gemma4.{key}: {problem}")


def test_gates_of_experts_have_as_many_rows_as_the_metadata_says(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model", "gemma4_text", fields=gemma4_layers.EXPERTS)
    file = make_gguf(path, tmp_path / "model.gguf", metadata={"gemma4.expert_feed_forward_length": 1 << 20})
    with pytest.raises(
        CheckpointError, match=r"ffn_gate_up_exps.weight: has the shape \(6, 96, 64\), not twice 1048576"
    ):
        open_weights(file)
