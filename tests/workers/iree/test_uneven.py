"""Models whose widths are no multiples of 16: they have the same kernels as others, and keep the same promises."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.request import Sampling
from tests.checkpoints import make_checkpoint
from tests.families.uneven import UNEVEN
from tests.gate import run_gate
from tests.prefix_gate import run_prefix_gate
from tests.sampled import sampled
from tests.workers.iree.conftest import Load, fetch_all
from tests.workers.iree.test_gate import TOKENS, check_logits
from workers.engine.runner import Chunk, DecodeRow
from workers.iree.device.drivers import GENERIC_DEVICE
from workers.precision import Dtype
from workers.sampling.sample_spec import SampleSpec

slow, exhaustive = pytest.mark.slow, pytest.mark.exhaustive


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        ("llama-uneven", "bfloat16"),
        pytest.param("mixtral-uneven", "bfloat16", marks=exhaustive),
        pytest.param("gemma3_text-uneven", "float32", marks=exhaustive),
        pytest.param("qwen3_moe-uneven", "float32", marks=exhaustive),
        pytest.param("granite-uneven-8-bit", "bfloat16", marks=[slow, exhaustive]),
    ],
)
def test_logits_are_bitwise_identical(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, dtype: Dtype
) -> None:
    """In any bucket, beside any neighbours, prefilled in any chunks."""
    runner = load(make_checkpoint(tmp_path / "model", **UNEVEN[case]), dtype=dtype)
    fetch_all(runner, "decode_1", "decode_4")
    assert runner.capabilities.exact_rows
    check_logits(runner, monkeypatch)
    runner.close()


@slow
@exhaustive
@pytest.mark.parametrize(("case", "dtype"), [("gemma3_text-uneven", "bfloat16"), ("qwen3_moe-uneven", "float32")])
def test_gate(load: Load, tmp_path: Path, case: str, dtype: Dtype) -> None:
    runner = load(make_checkpoint(tmp_path / "model", **UNEVEN[case]), dtype=dtype)
    fetch_all(runner, "decode_1")
    report = run_gate(lambda: runner)
    assert (report.requests >= 32, report.most_active) == (True, 8)
    assert min(report.cancelled, report.resumed, report.stopped, report.full) > 0


@slow
@pytest.mark.parametrize(
    ("case", "dtype"), [("llama-uneven", "bfloat16"), pytest.param("mixtral-uneven", "float32", marks=exhaustive)]
)
def test_rows_from_others_are_as_good_as_computed_ones(load: Load, tmp_path: Path, case: str, dtype: Dtype) -> None:
    path = make_checkpoint(tmp_path / "model", **UNEVEN[case])
    report = run_prefix_gate(lambda: load(path, dtype=dtype))
    assert report.hits > report.requests // 2
    assert min(report.in_place, report.copies) > 0


@pytest.mark.exhaustive
@slow
def test_a_lone_row_of_many_slots_has_a_graph_of_its_own(load: Load, tmp_path: Path) -> None:
    """Its tokens are those that it gets among 64 rows."""
    runner = load(make_checkpoint(tmp_path / "model", layers=1, **UNEVEN["llama-uneven"]), slots=64, context=32)
    assert runner.graphs.builder.plan.buckets == (1, 2, 4, 8, 16, 32, 64)
    fetch_all(runner, "decode_1")

    def generate(rows: int) -> list[int]:
        tokens = [TOKENS[slot] for slot in range(rows)]
        for slot in range(rows):
            runner.reset(slot)
        out = []
        for at in range(20):
            spec = SampleSpec(Sampling(temperature=1.0, seed=5), at + 1)
            steps = [DecodeRow(slot, token, at, at, spec) for slot, token in enumerate(tokens)]
            tokens = sampled(runner.decode(steps))
            out.append(tokens[0])
        return out

    assert generate(64) == generate(1)
    runner.close()


@slow
@exhaustive
@pytest.mark.parametrize("case", ["llama-uneven", "phi3-uneven"])
def test_other_devices_compute_the_same_model_without_padding(load: Load, tmp_path: Path, case: str) -> None:
    path, prompt = make_checkpoint(tmp_path / "model", **UNEVEN[case]), TOKENS[:30]
    changes: dict[str, Any] = {"slots": 4, "context": 32}
    padded, plain = load(path, **changes), load(path, device=GENERIC_DEVICE, **changes)
    try:
        assert padded.memory()["weights"] > plain.memory()["weights"]
        expected, actual = (runner.logits(Chunk(0, prompt, 0, 0)) for runner in (plain, padded))
        assert actual.shape == (30, UNEVEN[case].get("vocab", 512))
        np.testing.assert_allclose(actual, expected, atol=1e-4)
    finally:
        padded.close()
        plain.close()
