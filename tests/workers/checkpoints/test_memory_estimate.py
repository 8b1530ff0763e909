"""The memory of weights before they are loaded."""

from pathlib import Path

import pytest

from models import builtin_path
from tests.checkpoints import make_checkpoint
from workers.checkpoints.checkpoint import open_weights
from workers.checkpoints.memory_estimate import PADDING, estimate_weights


def test_quantized_weights_take_less() -> None:
    sizes = [estimate_weights(builtin_path(), dtype="auto", quantize=kind) for kind in ("none", "int8", "int4")]
    assert sizes == sorted(sizes, reverse=True)
    whole, half = (estimate_weights(builtin_path(), dtype=kind, quantize="none") for kind in ("float32", "bfloat16"))
    assert whole == pytest.approx(2 * half, abs=1)


def test_matrices_of_the_heads_of_latent_attention_stay_as_they_are(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "deepseek_v3", layers=1, tied=False)
    name, weights = "model.layers.0.self_attn.kv_b_proj.weight", open_weights(path)
    outputs, inputs = weights.shape(name)
    whole = estimate_weights(path, dtype="bfloat16", quantize="int8")
    others = sum(
        shape[0] * shape[1] * (1 + 8 / 32) if len(shape) == 2 else 2 * shape[0]
        for each in weights
        if each != name and (shape := weights.shape(each))
    )
    assert whole == pytest.approx((others + 2 * outputs * inputs) * (1 + PADDING), abs=1)
