"""FP8, MXFP4 and integers with zeros on IREE: the logits of plain checkpoints with the weights that are served."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.checkpoints import make_checkpoint, write_safetensors
from tests.low_bits import to_low_bits
from tests.workers.iree.conftest import Load
from workers.checkpoints.checkpoint import open_weights
from workers.engine.runner import Chunk

PROMPT = tuple(range(5, 25))


def logits(load: Load, path: Path, quantization: str) -> NDArray[np.float32]:
    runner = load(path, slots=1, context=32)
    try:
        assert runner.capabilities.quantization == quantization
        found: NDArray[np.float32] = runner.logits(Chunk(0, PROMPT, 0, 0))
        return found
    finally:
        runner.close()


@pytest.mark.parametrize(
    ("name", "quantization"),
    [("fp8-blocks", "int8"), ("int4-zeros", "int4"), ("mxfp4", "int8")],
)
def test_logits_are_those_of_the_weights(load: Load, tmp_path: Path, name: str, quantization: str) -> None:
    path = to_low_bits(make_checkpoint(tmp_path / "made", layers=1), name)[0]
    weights = open_weights(path)
    plain = make_checkpoint(tmp_path / "plain", layers=1)
    write_safetensors(plain / "model.safetensors", {name: weights[name] for name in weights})
    expected = logits(load, plain, "")
    # Rows are rounded to 22 bits before they are multiplied, and FP8 is quantized anew to int8.
    atol = (0.02 if name == "fp8-blocks" else 1e-4) * float(np.abs(expected).max())
    np.testing.assert_allclose(logits(load, path, quantization), expected, atol=atol, rtol=0)
