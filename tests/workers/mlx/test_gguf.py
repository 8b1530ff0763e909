"""Converted checkpoints on MLX: the logits of GGUF files and of low-bit formats are those of plain weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from tests.checkpoints import make_checkpoint, write_safetensors
from tests.reference.layers.mamba_layers import NEMOTRON_LATENTS
from tests.workers.checkpoints.gguf.gguf_files import make_gguf
from tests.workers.checkpoints.low_bits.low_bit_files import FORMATS, make_low_bits, served_weights, to_stacked_mxfp4
from tests.workers.mlx.conftest import Load
from workers.checkpoints.checkpoint import open_weights
from workers.checkpoints.quantized_matrix import unpack_words
from workers.checkpoints.weight_size import weight_bytes
from workers.engine.runner import Chunk
from workers.mlx.converted_tensors import pack_words

PROMPT = tuple(range(5, 25))


def logits(load: Load, path: Path, **options: str) -> NDArray[np.float32]:
    found: NDArray[np.float32] = load(path, **options).logits(Chunk(0, PROMPT, 0, 0))
    return found


@pytest.mark.parametrize(
    ("family", "dtype", "kind"),
    [
        ("llama", "float32", Type.F32),
        ("gemma3_text", "bfloat16", Type.BF16),
        ("mixtral", "float16", Type.F16),
        ("glm4_moe", "bfloat16", Type.BF16),
        ("deepseek_v3", "float32", Type.F32),
        ("granitemoeshared", "float32", Type.F32),
        ("nemotron_h", "float32", Type.F32),
        ("nemotron_h-experts", "float32", Type.F32),
    ],
    ids=[
        "llama-f32",
        "gemma3-bf16",
        "mixtral-f16",
        "glm4-moe-bf16",
        "deepseek-v3-f32",
        "granite-f32",
        "nemotron-h-f32",
        "nemotron-h-experts-f32",
    ],
)
def test_plain_weights_give_the_same_logits(load: Load, tmp_path: Path, family: str, dtype: str, kind: Type) -> None:
    fields: dict[str, Any] = {"query_pre_attn_scalar": 16} if family == "gemma3_text" else {}
    if family == "nemotron_h-experts":
        family, fields = "nemotron_h", NEMOTRON_LATENTS | {"hybrid_override_pattern": "M*E"}
    options: dict[str, Any] = {"tied": family != "deepseek_v3", "layers": 3 if family == "nemotron_h" else 2}
    path = make_checkpoint(tmp_path / "model", family, dtype=dtype, fields=fields, **options)  # type: ignore[arg-type]
    file = make_gguf(path, tmp_path / "model.gguf", kind)
    # Decays are rounded to float32 and back.
    np.testing.assert_allclose(logits(load, file), logits(load, path), atol=2e-5 * (family == "nemotron_h"), rtol=0)


def test_gpt_oss_in_mxfp4_is_the_same_from_a_file(load: Load, tmp_path: Path) -> None:
    path, plain = to_stacked_mxfp4(make_checkpoint(tmp_path / "model", "gpt_oss", tied=False))
    file = make_gguf(plain, tmp_path / "model.gguf", lambda name: Type.MXFP4 if "_exps.weight" in name else Type.F32)
    runner = load(file, dtype="float32")
    assert runner.capabilities.quantization == "fp4"
    assert runner.capabilities.weight_bytes == weight_bytes(open_weights(file), "float32", "none")
    expected = logits(load, path, dtype="float32")
    np.testing.assert_allclose(runner.logits(Chunk(0, PROMPT, 0, 0)), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q4_0, Type.Q5_1], ids=lambda kind: kind.name)
@pytest.mark.parametrize("family", ["qwen2", "mixtral", "ernie4_5_moe", "gpt_neox"])
def test_quantized_weights_are_computed_with_as_they_are(load: Load, tmp_path: Path, family: str, kind: Type) -> None:
    fields = {"moe_intermediate_size": 64} if family == "ernie4_5_moe" else {}
    options: dict[str, Any] = {"tied": False, "kv_heads": 4} if family == "gpt_neox" else {}
    plain = make_checkpoint(tmp_path / "model", family, fields=fields, **options)
    file = make_gguf(plain, tmp_path / "model.gguf", kind)
    weights = open_weights(file)
    write_safetensors(plain / "model.safetensors", {name: weights[name] for name in weights})
    runner = load(file, dtype="float32")
    bits = {Type.Q8_0: 8, Type.Q4_0: 4, Type.Q5_1: 5}[kind]
    assert runner.capabilities.quantization == f"int{bits}"
    assert runner.capabilities.weight_bytes == weight_bytes(weights, "float32", "none")
    expected = logits(load, plain, dtype="float32")
    np.testing.assert_allclose(
        runner.logits(Chunk(0, PROMPT, 0, 0)), expected, atol=1e-4 * float(np.abs(expected).max()), rtol=0
    )


def test_a_file_is_quantized_anew(load: Load, tmp_path: Path) -> None:
    file = make_gguf(make_checkpoint(tmp_path / "model"), tmp_path / "model.gguf", Type.Q8_0)
    assert load(file, quantize="int4").capabilities.quantization == "int4"


@pytest.mark.parametrize("bits", [4, 5, 8])
def test_words_are_unpacked_again(bits: int) -> None:
    levels = np.random.default_rng(0).integers(0, 1 << bits, (3, 64), np.uint8)
    np.testing.assert_array_equal(unpack_words(pack_words(levels, bits), bits), levels)


@pytest.mark.parametrize(
    ("name", "family"),
    [(name, "llama") for name in sorted(FORMATS)]
    + [("fp8-blocks", "qwen3_moe"), ("fp8-channel", "gpt_neox"), ("mxfp4", "mixtral")],
    ids=lambda value: value,
)
def test_logits_are_those_of_the_served_weights(load: Load, tmp_path: Path, name: str, family: str) -> None:
    # The experts of qwen3_moe have 48 inputs, which are no whole groups.
    options: dict[str, Any] = {"fields": {"intermediate_size": 64}} if family == "mixtral" else {}
    path = make_low_bits(tmp_path / "made", name, family, **options)
    weights = open_weights(path)
    runner = load(path, dtype="float32")
    assert runner.capabilities.weight_bytes == weight_bytes(weights, "float32", "none") == runner.memory()["weights"]
    assert runner.capabilities.quantization == {"i": name[:4], "m": "fp4"}.get(name[0], "int8")
    plain = make_checkpoint(tmp_path / "plain", family, tied=family == "llama", **options)
    write_safetensors(plain / "model.safetensors", served_weights(weights))
    expected = load(plain, dtype="float32").logits(Chunk(0, PROMPT, 0, 0))
    found = runner.logits(Chunk(0, PROMPT, 0, 0))
    tolerance = 0.1 if name.startswith("nvfp4") else 1e-4  # which becomes int8
    np.testing.assert_allclose(found, expected, atol=tolerance * float(np.abs(expected).max()), rtol=0)


def test_a_checkpoint_is_quantized_anew(load: Load, tmp_path: Path) -> None:
    runner = load(make_low_bits(tmp_path, "fp8-tensor"), quantize="int4")
    assert runner.capabilities.quantization == "int4"
