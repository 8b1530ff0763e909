"""The MLX backend, loaded from a worker's spec."""

from pathlib import Path
from typing import Any

import pytest
import structlog

from protocol.request import Sampling
from tests.checkpoints import make_checkpoint
from tests.gate import alone
from tests.workers.checkpoints.low_bits.low_bit_files import make_low_bits
from tests.workers.mlx.conftest import load_runner
from workers.checkpoints.checkpoint import CheckpointError
from workers.engine.request import EngineRequest
from workers.process import backends
from workers.process.spec import WorkerSpec


def spec(path: Path, **options: Any) -> WorkerSpec:
    return WorkerSpec("worker", "model", str(path), backend="mlx", device="cpu", context=64, **options)


def test_a_spec_loads_the_runner_it_describes(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "qwen3", dtype="bfloat16")
    runner = backends.load_runner(spec(path, max_batch_size=2, dtype="float32"), lambda *_: None)
    capabilities = runner.capabilities
    assert (capabilities.backend, capabilities.dtype, capabilities.slots) == ("mlx", "float32", 2)
    request = EngineRequest(0, (5, 6, 7), Sampling(temperature=0.7, seed=9), max_tokens=12)
    tokens = alone(runner, request)
    runner.close()
    other = load_runner(path, dtype="float32", slots=5)
    assert alone(other, request) == tokens
    other.close()


@pytest.mark.parametrize("kept", [100, 5000, -4], ids=["in the header", "in the tensors", "at the end"])
def test_a_file_that_was_cut_short_is_refused(tmp_path: Path, kept: int) -> None:
    path = make_checkpoint(tmp_path)
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match="is not a safetensors file"):
        backends.load_runner(spec(path), lambda *_: None)


def test_a_missing_shard_is_refused(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, sharded=True)
    next(path.glob("*-of-*.safetensors")).unlink()
    with pytest.raises(CheckpointError, match=r"of-00003.safetensors: there is no such file"):
        backends.load_runner(spec(path), lambda *_: None)


@pytest.mark.parametrize(
    ("name", "quantize", "kept", "requantized"),
    [
        ("int4-group", "none", "int4", []),
        ("fp8-tensor", "none", "int8", ["fp8"]),
        ("int4-group", "int8", "int8", ["int4"]),
    ],
)
def test_what_becomes_of_low_bit_matrices_is_logged_before_memory_is_taken(
    tmp_path: Path, name: str, quantize: Any, kept: str, requantized: list[str]
) -> None:
    path = make_low_bits(tmp_path, name)
    with structlog.testing.capture_logs() as logs:
        runner = backends.load_runner(spec(path, quantize=quantize), lambda *_: None)
    assert runner.capabilities.quantization == kept
    runner.close()
    assert [each["event"] for each in logs[:2]] == ["low_bit_weights", "memory_needed"]
    assert (logs[0]["kept"], logs[0]["requantized"]) == (kept, requantized)
    assert logs[1]["weights"] == runner.capabilities.weight_bytes
