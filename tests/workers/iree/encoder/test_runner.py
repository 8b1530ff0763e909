"""Encoders on IREE: the same bits in any call, on a CPU and in the graphs of GPUs, and quantized weights."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.compiling import compiling_here
from tests.workers.encoder_gate import run_encoder_gate, run_refusals
from tests.workers.tiny_encoders import make_encoder, sequences
from workers.checkpoints.checkpoint import CheckpointError
from workers.checkpoints.encoders.reading import read_encoder
from workers.engine.runner import Chunk
from workers.iree.build.encoder import plan as encoder_plan
from workers.iree.encoder.runner import IreeEncoderRunner
from workers.load_options import LoadOptions

OPTIONS = LoadOptions(device="local-task", dtype="float32", slots=8, cache_dir=Path())


def load(path: Path, cache_dir: Path, options: LoadOptions = OPTIONS) -> IreeEncoderRunner:
    config = read_encoder(path)
    with compiling_here():
        return IreeEncoderRunner.load(
            path, config, replace(options, cache_dir=cache_dir), lambda *progress: None, background=False
        )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder(tmp_path_factory.mktemp("encoder"), "bert")


@pytest.fixture
def runner(checkpoint: Path, cache_dir: Path) -> Iterator[IreeEncoderRunner]:
    runner = load(checkpoint, cache_dir)
    yield runner
    runner.close()


def test_rows_are_exact_in_any_call_and_graph(
    checkpoint: Path, cache_dir: Path, runner: IreeEncoderRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_encoder_gate(runner)
    run_refusals(runner)
    whole = runner.hidden(sequences())
    monkeypatch.setattr(encoder_plan, "CAPACITIES", (40,))
    small = load(checkpoint, cache_dir, replace(OPTIONS, context=40))
    try:
        (rows,) = small.hidden([sequences()[1]])
        np.testing.assert_array_equal(rows, whole[1])
        with pytest.raises(ValueError, match="more than the 40 of a sequence"):
            small.hidden([sequences()[2]])
    finally:
        small.close()


def test_non_finite_rows_do_not_reach_other_sequences(
    checkpoint: Path, cache_dir: Path, runner: IreeEncoderRunner
) -> None:
    (before,) = runner.hidden([sequences()[0]])
    scratch = runner._scratch[72].window
    assert scratch is not None
    scratch[...] = np.frombuffer(np.float32(np.nan).tobytes(), np.uint32)[0]
    (damaged,) = runner.hidden([sequences()[0]])
    assert not np.isfinite(damaged).all()
    (after,) = runner.hidden([sequences()[0]])
    np.testing.assert_array_equal(after, before)


@pytest.mark.exhaustive
def test_windows_and_rotation_are_exact_in_any_call(tmp_path: Path, cache_dir: Path) -> None:
    runner = load(make_encoder(tmp_path, "modernbert"), cache_dir)
    run_encoder_gate(runner)
    runner.close()


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_graphs_of_gpus_compute_the_same(tmp_path: Path, cache_dir: Path, family: str) -> None:
    path = make_encoder(tmp_path, family)
    results = []
    for device in ("local-task", "generic-task"):
        runner = load(path, cache_dir, replace(OPTIONS, device=device))
        results.append(runner.hidden(sequences()))
        runner.close()
    for ours, plain in zip(*results, strict=True):
        np.testing.assert_allclose(ours, plain, atol=2e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("changes", "error"), [("bfloat16", 0.02), ("int8", 0.02)])
def test_errors_of_fewer_bits_are_small(tmp_path: Path, cache_dir: Path, changes: str, error: float) -> None:
    """Relative to the length of a row."""
    path = make_encoder(tmp_path, "bert", hidden_size=64, intermediate_size=128)
    exact = load(path, cache_dir)
    fewer = replace(OPTIONS, quantize="int8") if changes == "int8" else replace(OPTIONS, dtype="bfloat16")
    other = load(path, cache_dir, fewer)
    for rows, near in zip(exact.hidden(sequences()), other.hidden(sequences()), strict=True):
        distance = np.linalg.norm(rows - near, axis=1) / np.linalg.norm(rows, axis=1)
        assert 0 < distance.max() < error
    exact.close()
    other.close()


def test_widths_that_are_no_whole_vectors_are_refused(tmp_path: Path, cache_dir: Path) -> None:
    path = make_encoder(tmp_path, "bert", hidden_size=40)
    with pytest.raises(CheckpointError, match=r"hidden_size: 40 lanes are no multiple of 16.*mlx"):
        load(path, cache_dir)


def test_segments_and_order_matter(runner: IreeEncoderRunner) -> None:
    plain, typed = Chunk(0, (7, 8, 9), 0, 0), Chunk(1, (7, 8, 9), 0, 0, token_types=(0, 1, 1))
    turned = Chunk(2, (9, 8, 7), 0, 0)
    one, other, third = runner.hidden([plain, typed, turned])
    assert not np.array_equal(one, other)
    assert not np.array_equal(one, third[::-1])
