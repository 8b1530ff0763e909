"""FP8, FP4, NF4 and compressed-tensors on MLX: the logits of plain checkpoints with the weights that are served."""

from pathlib import Path

import numpy as np
import pytest

from tests.checkpoints import make_checkpoint, write_safetensors
from tests.families import Tensors
from tests.low_bits import FORMATS, make_low_bits
from tests.workers.mlx.conftest import Load
from workers.checkpoints.checkpoint import Weights, open_weights
from workers.checkpoints.weight_size import weight_bytes
from workers.engine.runner import Chunk

PROMPT = tuple(range(5, 25))


def served(weights: Weights) -> Tensors:
    """The weights that are computed with, in plain numbers."""
    return {
        name: weights[name]
        if weights.format(name) is None
        else weights.take_quantized(name, weights.shape(name)).dequantize()
        for name in weights
    }


@pytest.mark.parametrize(
    ("name", "family"),
    [(name, "llama") for name in sorted(FORMATS)] + [("fp8-blocks", "qwen3_moe"), ("mxfp4", "mixtral")],
    ids=lambda value: value,
)
def test_logits_are_those_of_the_served_weights(load: Load, tmp_path: Path, name: str, family: str) -> None:
    # The experts of qwen3_moe have 48 inputs, which are no whole groups.
    options = {"fields": {"intermediate_size": 64}} if family == "mixtral" else {}
    path = make_low_bits(tmp_path / "made", name, family, **options)
    weights = open_weights(path)
    runner = load(path, dtype="float32")
    assert runner.capabilities.weight_bytes == weight_bytes(weights, "float32", "none") == runner.memory()["weights"]
    assert runner.capabilities.quantization == {"i": name[:4], "m": "int5"}.get(name[0], "int8")
    plain = make_checkpoint(tmp_path / "plain", family, tied=family == "llama", **options)
    write_safetensors(plain / "model.safetensors", served(weights))
    expected = load(plain, dtype="float32").logits(Chunk(0, PROMPT, 0, 0))
    found = runner.logits(Chunk(0, PROMPT, 0, 0))
    np.testing.assert_allclose(found, expected, atol=1e-4 * float(np.abs(expected).max()), rtol=0)


def test_a_checkpoint_is_quantized_anew(load: Load, tmp_path: Path) -> None:
    runner = load(make_low_bits(tmp_path, "fp8-tensor"), quantize="int4")
    assert runner.capabilities.quantization == "int4"
