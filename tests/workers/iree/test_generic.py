"""GPU graphs on the CPU: the device `generic-task` has their graphs, and memory that the host does not see."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoints import make_checkpoint
from tests.gate import run_gate
from tests.workers.iree.conftest import Load, fetch_all
from workers.checkpoints.checkpoint import CheckpointError
from workers.engine.runner import Chunk
from workers.iree.device.device import DeviceError
from workers.iree.device.drivers import GENERIC_DEVICE
from workers.iree.runner import IreeRunner

CONTEXT = 64
"""Two chunk lengths: what has no kernels of ours takes its time to compile."""
PROMPT = tuple(int(token) for token in np.random.default_rng(5).integers(3, 500, 30))
SAMPLING = ("unfiltered_4", "edit_4", "report_4")


def load_generic(load: Load, path: Path, **changes: Any) -> IreeRunner:
    return load(path, device=GENERIC_DEVICE, slots=4, **{"context": CONTEXT, **changes})


@pytest.mark.parametrize(
    ("family", "dtype", "sampling"),
    [
        pytest.param("llama", "bfloat16", (), id="bfloat16"),
        pytest.param("qwen2", "float32", SAMPLING, marks=pytest.mark.slow, id="float32"),
    ],
)
def test_gate(load: Load, tmp_path: Path, family: str, dtype: str, sampling: tuple[str, ...]) -> None:
    """A request's tokens are the same whatever else is in the batch, and whichever slot it gets.

    What no graph does with logits numpy does.
    """
    runner = load_generic(load, make_checkpoint(tmp_path / "model", family), dtype=dtype)
    capabilities = runner.capabilities
    assert (capabilities.device, capabilities.exact_rows, capabilities.kv_rows) == (GENERIC_DEVICE, False, 0)
    assert runner._host_kv is None
    if sampling:
        fetch_all(runner, *sampling)
        assert {*sampling, "narrow_4", "mask_4"} <= runner.graphs.ready
    report = run_gate(lambda: runner, requests=32, max_tokens=12, resume=False)
    assert report.requests >= 32
    assert report.most_active == 4
    assert min(report.cancelled, report.stopped, report.full, report.masked, report.reported) > 0


def test_quantized_checkpoints_are_widened(load: Load, tmp_path: Path) -> None:
    """Their tokens are those of the quantized kernels, but for what rounding changes."""
    path = make_checkpoint(tmp_path / "model", layers=1, quantized_bits=8)
    wide, packed = load_generic(load, path, context=32), load(path, slots=4, context=32)
    try:
        assert (wide.capabilities.quantization, packed.capabilities.quantization) == ("", "int8")
        expected, actual = (runner.logits(Chunk(0, PROMPT, 0, 0)) for runner in (wide, packed))
        np.testing.assert_allclose(actual, expected, atol=0.05 * float(np.abs(expected).max()))
    finally:
        wide.close()
        packed.close()


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_weights_are_not_quantized(load: Load, checkpoint: Path, kind: str) -> None:
    with pytest.raises(DeviceError, match=f"device: 'generic-task' has no products with {kind} weights"):
        load_generic(load, checkpoint, quantize=kind)


def test_experts_are_refused(load: Load, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the experts of qwen3_moe run on CPUs only"):
        load_generic(load, make_checkpoint(tmp_path / "model", "qwen3_moe", tied=False))
