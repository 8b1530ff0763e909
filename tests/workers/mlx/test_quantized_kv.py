"""A quantized KV cache on MLX: tokens do not depend on the batch, the chunks, or where rows come from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoints import make_checkpoint
from tests.failure_gate import run_failure_gate
from tests.gate import run_gate
from tests.prefix_gate import run_prefix_gate
from tests.workers.checkpoints.low_bits.low_bit_files import to_stacked_mxfp4
from tests.workers.mlx.conftest import Load, load_runner
from tests.workers.rows_gate import run_rows_gate
from tests.workers.tier_gate import run_tier_gate
from workers.engine.runner import Chunk
from workers.precision import KvDtype, max_level

mx = pytest.importorskip("mlx.core")

from workers.mlx.quantized_rows import dequantize_rows, quantize_rows  # noqa: E402

PROMPT = tuple(int(token) for token in np.random.default_rng(5).integers(3, 500, 90))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path, layers=2)


BITS = pytest.mark.parametrize("bits", [8, 4])


@BITS
def test_a_row_is_quantized_by_itself(bits: int) -> None:
    rows = np.random.default_rng(0).standard_normal((5, 2, 3, 32), np.float32)
    whole = np.array(quantize_rows(mx.array(rows), bits))
    assert whole.shape == (5, 2, 3, 4 * bits + 4)
    for at in np.ndindex(5, 2, 3):
        np.testing.assert_array_equal(np.array(quantize_rows(mx.array(rows[at]), bits)), whole[at])
    back = np.array(dequantize_rows(mx.array(whole), bits, mx.float32))
    np.testing.assert_array_less(np.abs(back - rows) / np.abs(rows).max(-1, keepdims=True), 0.501 / max_level(bits))


@BITS
@pytest.mark.parametrize("value", [0.0, 1e-38, 3e38, -3e38])
def test_rows_of_any_finite_values_come_back(value: float, bits: int) -> None:
    rows = np.full((1, 32), value, np.float32)
    back = np.array(dequantize_rows(quantize_rows(mx.array(rows), bits), bits, mx.float32))
    np.testing.assert_allclose(back, rows, rtol=1e-6, atol=1e-30)


@BITS
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_stays_so_and_no_other(value: float, bits: int) -> None:
    rows = np.ones((2, 32), np.float32)
    rows[1, 7] = value
    back = np.array(dequantize_rows(quantize_rows(mx.array(rows), bits), bits, mx.float32))
    assert np.isnan(back[1]).all()
    np.testing.assert_allclose(back[0], 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "ways"), [("int8", {"preempts": True}), ("int4", {"speculates": True})], ids=["preempted", "drafts"]
)
def test_gate(path: Path, kind: KvDtype, ways: dict[str, Any]) -> None:
    report = run_gate(
        lambda: load_runner(path, context=96, kv_dtype=kind), longest=40, requests=12, max_tokens=40, **ways
    )
    assert report.preemptions + report.accepted > 3


def test_gate_of_windows(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "gemma3_text", fields={"sliding_window": 9})
    report = run_gate(lambda: load_runner(path, context=48, kv_dtype="int4"), requests=12, max_tokens=8)
    assert report.most_active == 4


def test_rows_are_kept_moved_and_restored(path: Path, tmp_path: Path, load: Load) -> None:
    report = run_prefix_gate(lambda: load_runner(path, dtype="bfloat16", kv_dtype="int8"))
    assert min(report.in_place, report.copies) > 0
    run_rows_gate(load(path, kv_dtype="int8"), load(path, kv_dtype="int8", slots=2), 30)
    run_tier_gate(lambda: load_runner(path, kv_dtype="int8"), tmp_path / "store")
    run_failure_gate(lambda: load_runner(path, kv_dtype="int8"), "nan")


def test_rows_have_a_format_and_a_size_of_their_own(path: Path, load: Load) -> None:
    found = [load(path, kv_dtype=kind).capabilities for kind in ("auto", "int8", "int4")]
    assert len({each.rows_format for each in found}) == 3
    heads = found[0].row_bytes // (4 * 16)  # of 16 lanes in float32
    assert [each.row_bytes for each in found[1:]] == [heads * (16 + 4), heads * (8 + 4)]


@pytest.mark.parametrize(("kind", "most"), [("int8", 0.03), ("int4", 0.5)])
def test_logits_are_close_to_those_of_a_plain_cache(path: Path, load: Load, kind: KvDtype, most: float) -> None:
    plain, small = (load(path, kv_dtype=each).logits(Chunk(0, PROMPT, 0, 0)) for each in ("auto", kind))
    error = (small - plain).std() / plain.std()
    assert 0 < error < most


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gate_with_attention_sinks_and_fp4(tmp_path: Path, dtype: Any) -> None:
    """gpt-oss in MXFP4, with drafts and a quantized cache."""
    path, _ = to_stacked_mxfp4(make_checkpoint(tmp_path / "model", "gpt_oss", tied=False, fields={"sliding_window": 9}))
    options: Any = {"kv_dtype": "int8", "dtype": dtype, "slots": 6, "context": 96}
    report = run_gate(lambda: load_runner(path, **options), longest=40, requests=16, max_tokens=30, speculates=True)
    assert report.accepted > 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", ["granitemoehybrid", "lfm2", "qwen3_5_text"])
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_gate_beside_recurrent_states(tmp_path: Path, family: str, kind: KvDtype) -> None:
    """The states of hybrid models keep their type."""
    path = make_checkpoint(tmp_path, family, tied=family != "qwen3_5_text")
    options: Any = {"kv_dtype": kind, "context": 96}
    report = run_gate(lambda: load_runner(path, **options), longest=40, requests=12, max_tokens=16, speculates=True)
    assert report.most_active == 4
    assert run_prefix_gate(lambda: load_runner(path, **options), turns=2, max_tokens=3).hits > 0
