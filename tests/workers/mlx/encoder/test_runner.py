"""Encoders on MLX: the same bits in any call, and the shapes of calls on a GPU."""

from pathlib import Path

import numpy as np
import pytest

from tests.workers.encoder_gate import run_encoder_gate, run_refusals
from tests.workers.tiny_encoders import make_encoder, sequences
from workers.checkpoints.encoders.reading import read_encoder
from workers.load_options import LoadOptions
from workers.mlx.encoder.runner import MlxEncoderRunner
from workers.precision import Dtype, Quantize


def load(path: Path, dtype: Dtype = "float32", quantize: Quantize = "none") -> MlxEncoderRunner:
    options = LoadOptions(device="cpu", dtype=dtype, quantize=quantize, slots=8, cache_dir=path)
    return MlxEncoderRunner.load(path, read_encoder(path), options, lambda *progress: None)


def test_rows_are_exact_in_any_call(tmp_path: Path) -> None:
    runner = load(make_encoder(tmp_path, "bert"))
    run_encoder_gate(runner)
    run_refusals(runner)
    runner.close()
    with pytest.raises(RuntimeError, match="closed"):
        runner.hidden(sequences())


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_padded_calls_compute_the_same(tmp_path: Path, family: str) -> None:
    """The calls of a GPU, whose shape depends on the padded length alone."""
    runner = load(make_encoder(tmp_path, family))
    alone = runner.hidden(sequences())
    runner._alone = False
    padded = runner.hidden(sequences())
    for rows, other in zip(alone, padded, strict=True):
        np.testing.assert_allclose(rows, other, atol=2e-5)
    (again,) = runner.hidden(sequences()[:1])
    np.testing.assert_array_equal(again, padded[0])
    runner.close()


@pytest.mark.parametrize(("dtype", "quantize", "error"), [("bfloat16", "none", 0.02), ("float32", "int8", 0.02)])
def test_errors_of_fewer_bits_are_small(tmp_path: Path, dtype: Dtype, quantize: Quantize, error: float) -> None:
    """Relative to the length of a row."""
    path = make_encoder(tmp_path, "bert", hidden_size=64, intermediate_size=128)
    exact, other = load(path), load(path, dtype, quantize)
    for rows, near in zip(exact.hidden(sequences()), other.hidden(sequences()), strict=True):
        distance = np.linalg.norm(rows - near, axis=1) / np.linalg.norm(rows, axis=1)
        assert 0 < distance.max() < error
    exact.close()
    other.close()
