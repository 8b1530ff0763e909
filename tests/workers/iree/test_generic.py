"""GPU graphs on the CPU: the device `generic-task` has their graphs, and memory that the host does not see."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.request import Sampling
from tests.checkpoints import make_checkpoint
from tests.gate import run_gate
from tests.sampled import sampled
from tests.workers.iree.conftest import Load, fetch_all
from workers.checkpoints.checkpoint import CheckpointError
from workers.engine.runner import Chunk, DecodeRow
from workers.iree.device.device import DeviceError
from workers.iree.device.drivers import GENERIC_DEVICE
from workers.iree.runner import IreeRunner
from workers.sampling.sample_spec import SampleSpec

CONTEXT = 64
"""Two chunk lengths: what has no kernels of ours takes its time to compile."""
PROMPT = tuple(int(token) for token in np.random.default_rng(5).integers(3, 500, 30))
SAMPLING = ("unfiltered_4", "full_4", "edit_4", "report_4")
SEEDED = Sampling(temperature=0.9, top_k=50, top_p=0.95, seed=11)


def load_generic(load: Load, path: Path, **changes: Any) -> IreeRunner:
    return load(path, device=GENERIC_DEVICE, slots=4, **{"context": CONTEXT, **changes})


@pytest.mark.parametrize(
    ("family", "dtype", "sampling"),
    [
        pytest.param("llama", "bfloat16", SAMPLING, marks=pytest.mark.exhaustive, id="bfloat16"),
        pytest.param("qwen2", "float32", (), marks=pytest.mark.exhaustive, id="float32"),
    ],
)
def test_gate(load: Load, tmp_path: Path, family: str, dtype: str, sampling: tuple[str, ...]) -> None:
    """A request's tokens are the same whatever else is in the batch, and whichever slot it gets.

    What no graph does with logits numpy does.
    """
    runner = load_generic(load, make_checkpoint(tmp_path / "model", family), dtype=dtype)
    capabilities = runner.capabilities
    assert (capabilities.device, capabilities.exact_rows, capabilities.kv_rows) == (GENERIC_DEVICE, False, 0)
    assert runner._buffers.host_kv is None
    assert capabilities.rows_format == ""
    for refused in (lambda: runner.read_rows(0, 0, 1), lambda: runner.write_rows(0, 0, b"")):
        with pytest.raises(ValueError, match="rows cannot be read or written on generic-task"):
            refused()
    if sampling:
        fetch_all(runner, *sampling)
        assert {*sampling, "narrow_4", "mask_4"} <= runner.graphs.ready
    report = run_gate(lambda: runner, requests=64, max_tokens=12, resume=False)
    assert report.requests >= 64
    assert report.most_active == 4
    assert min(report.grammars, report.complete) > 0
    assert min(report.cancelled, report.stopped, report.full, report.masked, report.reported) > 0
    assert report.prompts_reported > 3


@pytest.mark.slow
def test_a_slot_is_filled_copied_and_reset_by_graphs(load: Load, tmp_path: Path) -> None:
    """The model has heads that no tile fits and is not padded; its cache is out of the host's reach."""
    plain = load_generic(load, make_checkpoint(tmp_path, "qwen3", head_dim=24), context=48)

    def generate() -> list[int]:
        (first,) = plain.prefill([Chunk(0, PROMPT, 0, 0)], [SampleSpec(SEEDED, len(PROMPT))])
        tokens = [first or 0]
        for at in range(len(PROMPT), len(PROMPT) + 5):
            tokens += sampled(plain.decode([DecodeRow(0, tokens[-1], at, at, SampleSpec(SEEDED, at + 1))]))
        return tokens

    def rows(slot: int) -> NDArray[np.float32]:
        """The rows of a slot, behind the layers and heads of keys and values."""
        cache, held = plain._plan.cache.groups[0], plain._device.download(plain._buffers.kv[0].view)
        rows: NDArray[np.float32] = held[:, :, slot].reshape(-1, cache.capacity, cache.head_dim)
        return rows

    try:
        expected = plain.logits(Chunk(1, PROMPT, 0, 0))
        tokens = generate()
        plain.reset(0)
        assert not rows(0).any()
        assert generate() == tokens
        plain.copy_prefix(1, 0, 20)
        assert plain.capabilities.exact_rows is False
        with pytest.raises(ValueError, match="chunks: 2, but rows are not exact"):
            plain.prefill([Chunk(2, PROMPT, 0, 0), Chunk(3, PROMPT, 0, 0)], [None, None])
        for at in range(20, len(PROMPT)):
            (token,) = plain.decode([DecodeRow(0, PROMPT[at], at, at, SampleSpec(Sampling(), at + 1))])
            assert token == expected[at].argmax()
        plain.copy_prefix(0, 3, len(PROMPT))
        plain.copy_prefix(1, 3, 20)
        assert rows(3)[:, :20].any(axis=(0, 2)).all()
        np.testing.assert_array_equal(rows(3)[:, :20], rows(1)[:, :20])
        assert not rows(3)[:, 20:].any()
        plain.copy_prefix(3, 3, 7)
        np.testing.assert_array_equal(rows(3)[:, :7], rows(1)[:, :7])
        assert not rows(3)[:, 7:].any()
        plain.reset(3)
        assert not rows(3).any()
    finally:
        plain.close()


def test_quantized_checkpoints_are_widened(load: Load, tmp_path: Path) -> None:
    """Their tokens are those of the quantized kernels, but for what rounding changes."""
    path = make_checkpoint(tmp_path / "model", layers=1, quantized_bits=8)
    wide, packed = load_generic(load, path, context=32), load(path, slots=4, context=32)
    try:
        assert (wide.capabilities.quantization, packed.capabilities.quantization) == ("", "int8")
        expected, actual = (runner.logits(Chunk(0, PROMPT, 0, 0)) for runner in (wide, packed))
        np.testing.assert_allclose(actual, expected, atol=0.05 * float(np.abs(expected).max()))
        expected, actual = (runner.hidden([Chunk(1, PROMPT, 0, 0)])[0] for runner in (wide, packed))
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
