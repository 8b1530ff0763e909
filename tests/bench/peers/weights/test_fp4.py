"""Checkpoints in FP4."""

from pathlib import Path

import numpy as np
import pytest

from bench.peers.weights.fp4 import Fp4Mode, to_fp4
from tests.checkpoints import make_checkpoint, write_safetensors
from workers.checkpoints.checkpoint import ModelConfig, open_weights

MODES: list[Fp4Mode] = ["mxfp4", "nvfp4"]


@pytest.mark.parametrize("mode", MODES)
def test_a_group_of_zeros_stays_zero(tmp_path: Path, mode: Fp4Mode) -> None:
    plain = make_checkpoint(tmp_path / "model", dtype="bfloat16")
    name, tensors = "model.layers.0.self_attn.o_proj.weight", dict(open_weights(plain).items())
    tensors[name] = np.zeros_like(tensors[name])
    write_safetensors(plain / "model.safetensors", tensors)
    weights = open_weights(to_fp4(plain, mode))
    assert not weights.take_quantized(name, weights.shape(name)).dequantize().any()


@pytest.mark.parametrize(("mode", "group"), [("mxfp4", 32), ("nvfp4", 16)])
def test_matrices_are_the_nearest_values_of_fp4(tmp_path: Path, mode: Fp4Mode, group: int) -> None:
    plain = make_checkpoint(tmp_path / "model", dtype="bfloat16")
    path = to_fp4(plain, mode)
    assert to_fp4(plain, mode) == path, "it is kept"
    assert ModelConfig.from_dir(path).quantization is not None
    for name in ("model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"):
        before, after = open_weights(plain), open_weights(path)
        shape = before.shape(name)
        weights, quantized = before.take(name, shape).astype(np.float32), after.take_quantized(name, shape)
        assert quantized.format.e2m1
        assert quantized.format.group == group
        groups = np.abs(weights).reshape(len(weights), -1, group).max(-1).repeat(group, 1)
        # Values up to 6 are a quarter of the largest power of two apart, or clipped at three quarters of the next one.
        # Small scales in FP8 are 2**-9 apart: half of that may be missing, 6 times in the largest value.
        rounded = 6 * 2**-10 if mode == "nvfp4" else 0.0
        assert (np.abs(quantized.dequantize() - weights) <= groups / 4 + rounded + 1e-6).all()
