"""The memory of weights before they are loaded."""

import pytest

from models import builtin_path
from workers.checkpoints.memory_estimate import estimate_weights


def test_quantized_weights_take_less() -> None:
    sizes = [estimate_weights(builtin_path(), dtype="auto", quantize=kind) for kind in ("none", "int8", "int4")]
    assert sizes == sorted(sizes, reverse=True)
    whole, half = (estimate_weights(builtin_path(), dtype=kind, quantize="none") for kind in ("float32", "bfloat16"))
    assert whole == pytest.approx(2 * half, abs=1)
