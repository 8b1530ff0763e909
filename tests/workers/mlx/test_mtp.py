"""The head for multi-token prediction on MLX."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from msgspec.structs import replace

from protocol.request import Sampling
from tests.checkpoints import make_checkpoint
from tests.gate import run_gate
from tests.prefix_gate import run_prefix_gate
from tests.workers.mlx.conftest import load_runner
from tests.workers.mtp_gate import run_mtp_gate, tokens_of
from tests.workers.mtp_reference import MtpReference
from tests.workers.rows_gate import run_rows_gate
from workers.checkpoints.checkpoint import ModelConfig, open_weights
from workers.checkpoints.weight_size import weight_bytes
from workers.engine.request import EngineRequest
from workers.load_options import LoadOptions
from workers.mlx.loading import parts as loading_parts
from workers.mlx.runner import MlxRunner
from workers.process.loading import load
from workers.process.spec import WorkerSpec


def load_with_head(path: Path, **options: Any) -> MlxRunner:
    chosen = LoadOptions(device="cpu", slots=4, context=256, cache_dir=path, **options)
    return MlxRunner.load(path, ModelConfig.from_dir(path).with_mtp(), chosen, lambda phase, done, total: None)


@pytest.mark.parametrize("tied", [True, False])
def test_the_head_computes_what_the_reference_does(tmp_path: Path, tied: bool) -> None:
    path = make_checkpoint(tmp_path, "mimo", tied=tied)
    runner = load_with_head(path)
    run_mtp_gate(runner, MtpReference(path), tokens_of(60))
    runner.close()


def test_the_head_of_a_quantized_checkpoint(tmp_path: Path) -> None:
    """It drafts what the head of the dequantized one does."""
    path = make_checkpoint(tmp_path / "quantized", "mimo", quantized_bits=8)
    runner = load_with_head(path)
    run_mtp_gate(runner, MtpReference(path), tokens_of(60))
    runner.close()


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_the_head_is_quantized_with_the_model(tmp_path: Path, kind: Any) -> None:
    path = make_checkpoint(tmp_path, "mimo")
    runner = load_with_head(path, quantize=kind)
    assert runner.memory()["weights"] == weight_bytes(open_weights(path), "float32", kind, mtp=True)
    assert "scales" in runner._forward.model.mtp.input_proj
    runner.close()


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("preempts", [False, True], ids=["", "preempting"])
def test_drafts_of_the_head_change_no_answer(tmp_path: Path, dtype: Any, preempts: bool) -> None:
    path = make_checkpoint(tmp_path, "mimo", dtype=dtype)
    report = run_gate(
        lambda: load_with_head(path, dtype=dtype),
        make_reference=lambda: load_runner(path, dtype=dtype),
        preempts=preempts,
        by_head=True,
        requests=24,
    )
    assert report.drafted > (20 if preempts else 50)
    assert report.most_active == 4
    assert not preempts or report.preemptions


def test_rows_are_moved_and_reused_with_those_of_the_head(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "mimo")
    run_rows_gate(load_with_head(path), load_with_head(path), 40)
    run_prefix_gate(lambda: load_with_head(path))


def test_a_worker_drafts_with_the_head(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "mimo")
    spec = WorkerSpec("w0", "m", str(path), backend="mlx", device="cpu", max_batch_size=2, context=128)
    answers = []
    for speculate, mtp in (("auto", True), ("off", False)):
        loaded = load(replace(spec, speculate=speculate), lambda *_: None)
        assert loaded.mtp == mtp
        loaded.engine.submit(EngineRequest(0, tokens_of(20), Sampling(temperature=0.9, seed=3), 60))
        tokens = []
        while not loaded.engine.idle:
            tokens += [token.token for token in loaded.engine.step().tokens]
        answers.append(tokens)
        loaded.engine.close()
    assert answers[0] == answers[1]


def test_a_gpu_leaves_the_head_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its drafts could not be verified there."""
    path = make_checkpoint(tmp_path, "mimo")
    monkeypatch.setattr(loading_parts, "choose_device", lambda _: ("gpu", mx.Device(mx.cpu)))
    monkeypatch.setattr(loading_parts, "maybe_set_recommended_wired_limit", lambda: None)
    runner = load_with_head(path)
    assert runner.draft_head is None
    assert runner.memory()["weights"] == weight_bytes(open_weights(path), "float32", "none")
    runner.close()
