"""Quantized models on MLX: AWQ checkpoints, and matrices that are quantized while loading."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.checkpoints import make_checkpoint, write_safetensors
from tests.quantized import requantize
from tests.workers.mlx.alone.lone_checkpoints import make_lone_checkpoint
from tests.workers.mlx.conftest import Load
from workers.checkpoints.checkpoint import CheckpointError, open_weights
from workers.checkpoints.weight_size import weight_bytes
from workers.engine.runner import Chunk

TOKENS = tuple(range(5, 25))
PARTS = ("weight", "scales", "biases")


def test_awq(load: Load, tmp_path: Path) -> None:
    plain = load(make_checkpoint(tmp_path / "plain", dtype="float16"), dtype="float32").logits(Chunk(0, TOKENS, 0, 0))
    path = requantize(make_checkpoint(tmp_path / "awq", dtype="float16"), "awq")
    runner = load(path, dtype="float32")
    assert runner.capabilities.quantization == "int4"
    logits = runner.logits(Chunk(0, TOKENS, 0, 0))
    assert 0 < np.abs(logits - plain).mean() < 0.5 * plain.std()


def log_probabilities(runner: Any) -> NDArray[np.float64]:
    logits = runner.logits(Chunk(0, TOKENS, 0, 0)).astype(np.float64)
    shifted: NDArray[np.float64] = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return shifted


def dequantized(path: Path, folder: Path) -> Path:
    """A plain copy of a quantized checkpoint, with exactly its weights."""
    weights, plain = open_weights(path), make_checkpoint(folder, tied=False)
    tensors = {}
    for name in weights:
        shape = weights.shape(name)
        quantized = weights.format(name) is not None
        if quantized and name.startswith("model.layers"):
            shape = open_weights(plain)[name].shape
        matrix = weights.take_quantized(name, shape).dequantize() if quantized else weights[name].astype(np.float32)
        tensors[name] = matrix
    tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"])
    write_safetensors(plain / "model.safetensors", tensors)
    return plain


@pytest.mark.parametrize("symmetric", [False, True], ids=["zeros", "symmetric"])
def test_awq_computes_with_exactly_its_weights(load: Load, tmp_path: Path, symmetric: bool) -> None:
    """A bias of 16 bits would round the product of scale and zero."""
    path = requantize(make_checkpoint(tmp_path / "awq", dtype="float16"), "awq", symmetric=symmetric)
    plain = dequantized(path, tmp_path / "plain")
    exact = log_probabilities(load(plain, dtype="float32"))
    np.testing.assert_allclose(log_probabilities(load(path, dtype="float32")), exact, atol=1e-5, rtol=0)


def halves(path: Path) -> Path:
    """AWQ's scales are in float16."""
    return requantize(make_checkpoint(path, dtype="float16"), "awq")


def other_type(path: Path) -> Path:
    """As many published models: scales in float16, and bfloat16 in config.json."""
    return make_checkpoint(path, dtype="float16", tied=False, quantized_bits=4, fields={"torch_dtype": "bfloat16"})


def other_type_with_tied_embedding(path: Path) -> Path:
    return make_checkpoint(path, dtype="float16", quantized_bits=4, fields={"torch_dtype": "bfloat16"})


@pytest.mark.parametrize("make", [halves, other_type, other_type_with_tied_embedding])
def test_scales_are_not_rounded_to_the_type_of_the_model(
    load: Load, tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    """The error beside exact weights is that of a model in bfloat16, and rows do not depend on their chunk."""
    path = make(tmp_path / "quantized")
    plain = dequantized(path, tmp_path / "plain")
    exact = log_probabilities(load(plain, dtype="float32"))
    rounded = np.abs(log_probabilities(load(plain, dtype="bfloat16")) - exact).mean()
    runner = load(path, dtype="bfloat16")
    assert 0 < np.abs(log_probabilities(runner) - exact).mean() < 1.25 * rounded
    single = [runner.logits(Chunk(1, (token,), at, at)) for at, token in enumerate(TOKENS)]
    np.testing.assert_array_equal(np.concatenate(single), runner.logits(Chunk(2, TOKENS, 0, 0)))


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_stated_memory_counts_scales_in_float32(load: Load, tmp_path: Path, kind: Any) -> None:
    path = requantize(make_checkpoint(tmp_path, dtype="float16"), "awq")
    assert weight_bytes(open_weights(path), kind, "none") == load(path, dtype=kind).memory()["weights"]


def test_gptq_is_refused(load: Load, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'gptq' is not supported by the MLX backend"):
        load(requantize(make_checkpoint(tmp_path), "gptq"))


def test_quantize(load: Load, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path)
    plain = load(path)
    exact = plain.logits(Chunk(0, TOKENS, 0, 0))
    errors = []
    for kind in ("int8", "int4"):
        runner = load(path, quantize=kind)
        assert runner.capabilities.quantization == kind
        assert runner.memory()["weights"] < plain.memory()["weights"] / 2
        errors.append(np.abs(runner.logits(Chunk(0, TOKENS, 0, 0)) - exact).mean())
    assert 0 < errors[0] < errors[1] / 5


def test_a_model_without_whole_groups_is_refused(load: Load, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, hidden=48, head_dim=16, heads=3, kv_heads=1, ffn=80)
    with pytest.raises(CheckpointError, match="hidden_size: no matrix has rows of whole groups of 64: none can be"):
        load(path, quantize="int8")


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "granite", "qwen3_moe", "mixtral", "gpt_neox"])
def test_quantized_caps_and_experts(load: Load, tmp_path: Path, family: Any) -> None:
    """Experts are quantized like other matrices, routers are not; rows do not depend on their chunk."""
    path = make_checkpoint(tmp_path, family, tied="gemma" in family)
    exact, runner = load(path).logits(Chunk(0, TOKENS, 0, 0)), load(path, quantize="int8")
    logits = runner.logits(Chunk(0, TOKENS, 0, 0))
    assert 0 < np.abs(logits - exact).mean() < 0.1 * exact.std()
    single = [runner.logits(Chunk(1, (token,), at, at)) for at, token in enumerate(TOKENS)]
    np.testing.assert_array_equal(np.concatenate(single), logits)


@pytest.mark.parametrize(("family", "dtype"), [("mixtral", "bfloat16"), ("qwen3_moe", "float16")])
def test_experts_of_16_bits(load: Load, tmp_path: Path, family: Any, dtype: Any) -> None:
    """Also beside quantized matrices, as 48 inputs are not whole groups; with more pairs than mlx-lm sorts or fewer."""
    path = make_checkpoint(tmp_path, family, tied=False, dtype=dtype)
    exact, runner = load(path, dtype="float32").logits(Chunk(0, TOKENS, 0, 0)), load(path, dtype=dtype)
    logits = runner.logits(Chunk(0, TOKENS, 0, 0))
    assert 0 < np.abs(logits - exact).mean() < 0.1 * exact.std()
    single = [runner.logits(Chunk(1, (token,), at, at)) for at, token in enumerate(TOKENS)]
    np.testing.assert_array_equal(np.concatenate(single), logits)
    mixed = load(path, dtype=dtype, quantize="int8").logits(Chunk(0, TOKENS, 0, 0))
    assert np.abs(mixed - exact).mean() < 0.2 * exact.std()


@pytest.mark.parametrize(
    ("options", "kind", "quantize"),
    [
        ({"tied": False, "dtype": "bfloat16"}, "bfloat16", "none"),
        ({"dtype": "bfloat16", "fields": {"torch_dtype": "float32"}}, "float32", "none"),
        ({"dtype": "float32", "fields": {"torch_dtype": "bfloat16"}}, "bfloat16", "none"),
        ({"quantized_bits": 4}, "float16", "none"),
        ({"dtype": "bfloat16"}, "bfloat16", "int8"),
        ({"family": "qwen3_moe", "tied": False}, "float32", "int4"),
        ({"family": "mimo"}, "float32", "none"),
        ({"family": "mixtral", "tied": False, "quantized_bits": 8}, "bfloat16", "none"),
        ({"dtype": "float16", "quantized_bits": 4}, "bfloat16", "none"),
    ],
)
def test_stated_memory_is_what_is_taken(
    load: Load, tmp_path: Path, options: dict[str, Any], kind: Any, quantize: Any
) -> None:
    path = make_checkpoint(tmp_path, **options)
    (path / "consolidated.safetensors").write_bytes(bytes(1 << 20))  # the same weights for another program
    taken = load(path, dtype=kind, quantize=quantize).memory()["weights"]
    assert weight_bytes(open_weights(path), kind, quantize) == taken


def test_bits_that_differ_by_module(load: Load, tmp_path: Path) -> None:
    """Mixed recipes state the bits of each module in config.json."""
    bits = {"up_proj": 3, "gate_proj": 3, "down_proj": 6, "q_proj": 5, "v_proj": 6, "k_proj": 4, "o_proj": 8}
    path, plain = make_checkpoint(tmp_path / "mixed", tied=False), make_checkpoint(tmp_path / "plain", tied=False)
    plan: dict[str, Any] = {"group_size": 32, "bits": 4}
    stored, exact = dict(open_weights(path)), dict(open_weights(path))
    for name, weight in open_weights(path).items():
        module = name.removesuffix(".weight")
        width = bits.get(module.rpartition(".")[2])
        if width is None:
            continue
        parts = mx.quantize(mx.array(weight), group_size=32, bits=width)
        stored |= {f"{module}.{part}": np.array(each) for part, each in zip(PARTS, parts, strict=True)}
        exact[name] = np.array(mx.dequantize(*parts, group_size=32, bits=width))
        plan[module] = {"group_size": 32, "bits": width}
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"quantization": plan}))
    write_safetensors(path / "model.safetensors", stored)
    write_safetensors(plain / "model.safetensors", exact)
    runner = load(path, dtype="float32")
    assert runner.capabilities.quantization == "int3+int4+int5+int6+int8"
    found, expected = log_probabilities(runner), log_probabilities(load(plain, dtype="float32"))
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)


def microscaled(path: Path, mode: str, group: int, bits: int) -> tuple[Path, Path]:
    """Quantize the layers' matrices of a plain checkpoint in one of MLX's modes, and the embedding in affine groups, as
    mlx-lm saves them. Returns the path, and a plain checkpoint with the weights that they mean."""
    plain = path.with_name("plain")
    shutil.copytree(path, plain)
    tensors, meant = {}, {}
    stored: Any = mx.load(str(path / "model.safetensors"))
    for name, tensor in stored.items():
        quantized = tensor.ndim > 1 and not name.endswith(("bias", "router.weight", "lm_head.weight"))
        if not quantized:
            tensors[name] = meant[name] = np.array(tensor)
            continue
        how: Any = {"group_size": group, "bits": bits, "mode": mode}
        if "embed" in name:
            how = {"group_size": 32, "bits": 8, "mode": "affine"}
        with mx.stream(mx.Device(mx.cpu)):
            parts = mx.quantize(tensor, **how)
            meant[name] = np.array(mx.dequantize(*parts, **how, dtype=mx.float32))
        module = name.removesuffix(".weight")
        tensors |= {f"{module}.{part}": np.array(value) for part, value in zip(PARTS, parts, strict=False)}
    config = json.loads((path / "config.json").read_text())
    embedding = {"model.embed_tokens": {"group_size": 32, "bits": 8}}
    quantization = {"group_size": group, "bits": bits, "mode": mode, **embedding}
    (path / "config.json").write_text(json.dumps(config | {"quantization": quantization}))
    write_safetensors(path / "model.safetensors", tensors)
    write_safetensors(plain / "model.safetensors", meant)
    return path, plain


@pytest.mark.parametrize(
    ("family", "mode", "group", "bits"),
    [("llama", "mxfp4", 32, 4), ("gpt_oss", "mxfp4", 32, 4), ("llama", "nvfp4", 16, 4), ("llama", "mxfp8", 32, 8)],
    ids=["mxfp4", "mxfp4-experts", "nvfp4", "mxfp8"],
)
def test_modes_of_mlx(load: Load, tmp_path: Path, family: str, mode: str, group: int, bits: int) -> None:
    """Both backends read such checkpoints: MLX multiplies by them as they are, IREE by FP4, or int8 in place of FP8."""
    if family == "gpt_oss":
        made = make_lone_checkpoint(tmp_path / "made", family)
    else:
        made = make_checkpoint(tmp_path / "made", tied=False)
    path, plain = microscaled(made, mode, group, bits)
    runner = load(path, dtype="float32")
    weights = open_weights(path)
    assert runner.capabilities.quantization == f"fp{bits}+int8"
    assert runner.capabilities.weight_bytes == weight_bytes(weights, "float32", "none") == runner.memory()["weights"]
    expected = load(plain, dtype="float32").logits(Chunk(0, TOKENS, 0, 0))
    found = runner.logits(Chunk(0, TOKENS, 0, 0))
    np.testing.assert_allclose(found, expected, atol=1e-4 * float(np.abs(expected).max()), rtol=0)
    for name, matrix in open_weights(plain).items():
        if weights.format(name) is None:
            np.testing.assert_array_equal(weights[name], matrix)
            continue
        served = weights.take_quantized(name, matrix.shape).dequantize()
        np.testing.assert_allclose(served, matrix, rtol=1e-6, atol=0.02 * np.abs(matrix).max() if bits == 8 else 1e-6)


@pytest.mark.exhaustive
def test_stacks_of_heads_as_mlx_lm_writes_them(load: Load, tmp_path: Path) -> None:
    """Latent attention: mlx-lm has a matrix of each head's keys and values in the place of one of all."""
    sizes = {"moe_intermediate_size": 64, "qk_nope_head_dim": 32, "v_head_dim": 32, "q_lora_rank": 64}
    plain, made = make_checkpoint(tmp_path / "plain", "deepseek_v3", tied=False, fields=sizes), tmp_path / "made"
    mlx_lm.convert(str(plain), str(made), quantize=True, q_group_size=32, q_bits=8, dtype="float32")
    weights, original = open_weights(made), open_weights(plain)
    assert "model.layers.0.self_attn.embed_q.weight" in weights
    tensors = {name: weights[name] for name in original if "kv_b_proj" not in name}
    for layer in range(2):
        name = f"model.layers.{layer}.self_attn."
        keys, values = (weights[f"{name}{part}.weight"].reshape(4, -1, 32) for part in ("embed_q", "unembed_out"))
        both = np.concatenate([keys.swapaxes(1, 2), values], axis=1).reshape(-1, 32)
        tensors[f"{name}kv_b_proj.weight"] = both
        np.testing.assert_allclose(both, original[f"{name}kv_b_proj.weight"], atol=0.02)
    write_safetensors(plain / "model.safetensors", tensors)
    chunk = Chunk(0, tuple(range(5, 25)), 0, 0)
    found, expected = (load(path, dtype="float32").logits(chunk) for path in (made, plain))
    np.testing.assert_allclose(found, expected, atol=1e-4 * float(np.abs(expected).max()), rtol=0)
