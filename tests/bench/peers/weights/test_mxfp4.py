"""Checkpoints in MXFP4."""

from pathlib import Path

import numpy as np

from bench.peers.weights.mxfp4 import to_mxfp4
from tests.checkpoints import make_checkpoint, write_safetensors
from workers.checkpoints.checkpoint import ModelConfig, open_weights


def test_a_group_of_zeros_stays_zero(tmp_path: Path) -> None:
    plain = make_checkpoint(tmp_path / "model", dtype="bfloat16")
    name, tensors = "model.layers.0.self_attn.o_proj.weight", dict(open_weights(plain).items())
    tensors[name] = np.zeros_like(tensors[name])
    write_safetensors(plain / "model.safetensors", tensors)
    weights = open_weights(to_mxfp4(plain))
    assert not weights.take_quantized(name, weights.shape(name)).dequantize().any()


def test_matrices_are_the_nearest_values_of_fp4(tmp_path: Path) -> None:
    plain = make_checkpoint(tmp_path / "model", dtype="bfloat16")
    path = to_mxfp4(plain)
    assert to_mxfp4(plain) == path, "it is kept"
    assert ModelConfig.from_dir(path).quantization is not None
    for name in ("model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"):
        before, after = open_weights(plain), open_weights(path)
        shape = before.shape(name)
        weights, quantized = before.take(name, shape).astype(np.float32), after.take_quantized(name, shape)
        assert quantized.format.e2m1
        groups = np.abs(weights).reshape(len(weights), -1, 32).max(-1).repeat(32, 1)
        # Values up to 6 are a quarter of the largest power of two apart, or clipped at three quarters of the next one.
        assert (np.abs(quantized.dequantize() - weights) <= groups / 4 + 1e-6).all()
