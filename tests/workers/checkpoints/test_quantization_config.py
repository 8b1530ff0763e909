"""Quantization in config.json: supported schemes, and refused ones."""

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from tests.checkpoints import make_checkpoint
from tests.quantized import gptq_parts, quantize_with_zeros, requantize
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig, open_weights
from workers.checkpoints.quantization_config import parse_quantization
from workers.checkpoints.quantized_matrix import GroupFormat

MATRIX = "model.layers.0.mlp.up_proj.weight"


def parse(**config: Any) -> Any:
    return parse_quantization(Path("config.json"), config)


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (GPTQ | {"bits": 3}, r"quantization_config.bits: 3 is not supported, only \(2, 4, 8\)"),
        (GPTQ | {"bits": True}, "bits: True is not supported"),
        (GPTQ | {"group_size": 7}, "group_size: 7"),
        (GPTQ | {"sym": "yes"}, "sym: 'yes' is neither"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format: 'marlin'"),
        (AWQ | {"bits": 8}, "bits: 8 is not supported"),
        (AWQ | {"version": "gemv"}, "version: 'gemv' is not supported, only 'gemm'"),
        ({"quant_method": "quark"}, "quant_method: 'quark' is not supported, only 'awq', 'bitsandbytes', 'compressed-"),
        ("gptq", "quantization_config: is not an object"),
    ],
)
def test_refused_by_name(plan: Any, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        parse(quantization_config=plan)


@pytest.mark.parametrize("where", ["quantization", "quantization_config"])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bits": 7}, "bits: 7 is not supported"),
        ({"mode": "mxfp2"}, "mode: 'mxfp2' is not supported, only 'affine', 'mxfp4', 'nvfp4', 'mxfp8'"),
        ({"a.b": {"bits": 4, "group_size": 32, "mode": "mxfp8"}}, "a.b.bits: 4 is not that of mxfp8, 8"),
        ({"a.b": {"bits": 4, "group_size": 32, "mode": "nvfp4"}}, "a.b.group_size: 32 is not that of nvfp4, 16"),
        ({"a.b": {"bits": 4}}, "a.b.group_size: None"),
    ],
)
def test_modes_and_modules_are_refused_by_name(where: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=rf"json: {where}\.{words}"):
        parse(**{where: {"group_size": 64, "bits": 4} | changes})


def test_one_group_of_all_inputs() -> None:
    plan = parse(quantization_config=GPTQ | {"group_size": -1})
    assert plan.format("m", (512, 64), "float16") == GroupFormat(4, 4096, "middle", "float16")


def test_widths() -> None:
    assert parse(quantization_config=GPTQ).widths == "int4"
    modules = {"model.embed_tokens": {"group_size": 64, "bits": 8}}
    assert parse(quantization={"group_size": 64, "bits": 4} | modules).widths == "int4+int8"


@pytest.mark.parametrize("method", ["gptq", "awq"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_matrices_of_a_checkpoint(tmp_path: Path, method: Literal["gptq", "awq"], symmetric: bool) -> None:
    plain = open_weights(make_checkpoint(tmp_path / "plain"))
    path = requantize(make_checkpoint(tmp_path / "made"), method, symmetric=symmetric)
    weights, made = open_weights(path), quantize_with_zeros(plain[MATRIX], 4, 32, symmetric=symmetric)
    assert set(weights) == set(plain)
    assert len(weights) == len(plain)
    assert weights.format(MATRIX) == made.format
    assert weights.format("model.embed_tokens.weight") is None
    np.testing.assert_array_equal(weights.take_quantized(MATRIX, (128, 64)).levels, made.levels)
    np.testing.assert_array_equal(weights[MATRIX], made.dequantize().astype(np.float16))
    with pytest.raises(CheckpointError, match=r"up_proj.weight: has the shape \(128, 64\)"):
        weights.take_quantized(MATRIX, (64, 128))
    assert ModelConfig.from_dir(path).quantization is not None


def test_reordered_inputs_are_refused() -> None:
    made = quantize_with_zeros(np.random.default_rng(0).standard_normal((8, 64)), 4, 32, symmetric=True)
    parts = {f".{name}": value for name, value in gptq_parts(made).items()}
    plan = parse(quantization_config=GPTQ | {"group_size": 32})
    np.testing.assert_array_equal(plan.unpack(parts, made.format).levels, made.levels)
    with pytest.raises(ValueError, match="inputs are reordered"):
        plan.unpack(parts | {".g_idx": parts[".g_idx"][::-1]}, made.format)


def test_words_that_do_not_fit_are_named(tmp_path: Path) -> None:
    path = requantize(make_checkpoint(tmp_path), "gptq")
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = AWQ | {"group_size": 32}  # whose words are packed along the outputs
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"up_proj.weight: bad quantized tensor"):
        open_weights(path)[MATRIX]
