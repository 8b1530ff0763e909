"""A quantized KV cache on IREE: tokens do not depend on the batch, the chunks, or where rows come from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from protocol.request import Sampling
from tests.checkpoints import make_checkpoint
from tests.failure_gate import run_failure_gate
from tests.gate import run_gate
from tests.prefix_gate import run_prefix_gate
from tests.workers.checkpoints.low_bits.low_bit_files import to_stacked_mxfp4
from tests.workers.iree.conftest import Load, fetch_all
from tests.workers.iree.cpus import skip_unless_possible
from tests.workers.iree.test_gate import TOKENS, check_logits
from tests.workers.iree.test_generic import load_generic
from tests.workers.rows_gate import run_rows_gate
from tests.workers.tier_gate import run_tier_gate
from workers.checkpoints.checkpoint import CheckpointError, config_digest
from workers.engine.runner import Chunk, DecodeRow
from workers.iree.kv_memory import row_bytes
from workers.iree.rows_format import rows_format
from workers.iree.runner import IreeRunner
from workers.precision import CpuTarget, Dtype, KvDtype, Quantize
from workers.sampling.sample_spec import SampleSpec

INT8: dict[str, Any] = {"kv_dtype": "int8"}
INT4: dict[str, Any] = {"kv_dtype": "int4"}
MAX_ERROR = {"int8": 0.03, "int4": 0.5}
"""The standard deviation of the errors of a tiny model's logits, relative to that of the logits."""


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layers with a sliding window and one without."""
    return make_checkpoint(
        tmp_path_factory.mktemp("windowed"), "gemma3_text", head_dim=32, fields={"sliding_window": 9}
    )


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads that levels of 4 bits fill."""
    return make_checkpoint(tmp_path_factory.mktemp("wide"), "llama", head_dim=32)


@pytest.mark.parametrize(
    "ways",
    [
        pytest.param(INT8 | {"preempts": True}, marks=pytest.mark.exhaustive, id="preempted"),
        pytest.param(INT4 | {"speculates": True}, marks=pytest.mark.exhaustive, id="drafts"),
    ],
)
def test_gate(load: Load, windowed: Path, ways: dict[str, Any]) -> None:
    kind = ways.pop("kv_dtype")
    report = run_gate(lambda: load(windowed, dtype="bfloat16", kv_dtype=kind), requests=16, max_tokens=40, **ways)
    assert report.preemptions + report.accepted > 1


@pytest.mark.parametrize(
    ("kind", "dtype", "cpu"),
    [
        pytest.param("int8", "float32", "host", marks=pytest.mark.exhaustive),
        ("int4", "float32", "host"),
        pytest.param("int4", "bfloat16", "host", marks=pytest.mark.exhaustive),
        pytest.param("int8", "bfloat16", "avx2", marks=pytest.mark.exhaustive),
    ],
)
def test_logits_are_bitwise_identical_and_close(
    load: Load, wide: Path, monkeypatch: pytest.MonkeyPatch, kind: KvDtype, dtype: Dtype, cpu: CpuTarget
) -> None:
    skip_unless_possible(cpu)
    plain = load(wide, dtype=dtype, cpu=cpu)
    expected = plain.logits(Chunk(0, TOKENS, 0, 0))
    plain.close()
    runner = load(wide, dtype=dtype, cpu=cpu, kv_dtype=kind)
    fetch_all(runner, "decode_1", "decode_4")
    check_logits(runner, monkeypatch)
    assert 0 < (runner.logits(Chunk(7, TOKENS, 0, 0)) - expected).std() / expected.std() < MAX_ERROR[kind]
    runner.close()


@pytest.mark.parametrize(
    "kind", [pytest.param(INT8, id="int8"), pytest.param(INT4, marks=pytest.mark.exhaustive, id="int4")]
)
def test_rows_are_kept_moved_and_restored(load: Load, windowed: Path, tmp_path: Path, kind: dict[str, Any]) -> None:
    def quantized() -> IreeRunner:
        return load(windowed, dtype="bfloat16", **kind)

    report = run_prefix_gate(quantized)
    assert min(report.in_place, report.copies) > 0
    run_tier_gate(quantized, tmp_path / "store")
    run_failure_gate(quantized, "nan")
    one, other = quantized(), quantized()
    run_rows_gate(one, other, 50, splits=(1, 16, 19, 48))
    one.close()
    other.close()


def test_the_capabilities_tell_the_size_and_format_of_rows(load: Load, wide: Path) -> None:
    runner = load(wide, **INT8)
    capabilities, memory, recipe = runner.capabilities, runner.memory(), runner.graphs.builder.recipe
    runner.close()
    recipes = {kind: replace(recipe, kv_dtype=kind) for kind in ("auto", "int8", "int4")}
    plans = {kind: each.plan() for kind, each in recipes.items()}
    lanes = 2 * plans["auto"].config.layers * plans["auto"].config.kv_heads
    sizes = {kind: row_bytes(plan) for kind, plan in plans.items()}
    assert sizes == {"auto": lanes * 32 * 4, "int8": lanes * (32 + 4), "int4": lanes * (16 + 4)}
    digest = config_digest(wide)
    formats = {kind: rows_format(digest, each, plans[kind]) for kind, each in recipes.items()}
    assert len(set(formats.values())) == 3
    assert (capabilities.row_bytes, capabilities.rows_format) == (sizes["int8"], formats["int8"])
    assert memory["kv"] == sizes["int8"] * plans["int8"].cache.slots * plans["int8"].cache.capacity


def test_a_row_that_is_not_finite_fails_alone(load: Load, wide: Path) -> None:
    runner = load(wide, **INT8)
    window = runner._buffers.kv[0].window
    assert window is not None
    spec = SampleSpec(Sampling(), 31)
    for slot in (0, 1):
        runner.prefill([Chunk(slot, TOKENS[:30], 0, 0)], [None])
    rows = [DecodeRow(slot, TOKENS[30], 30, 30, spec) for slot in (0, 1)]
    expected = runner.decode(rows)
    scale = runner._plan.cache.capacity * runner._plan.cache.groups[0].head_dim
    window[:, :, 1, :, scale : scale + 4] = np.frombuffer(np.float32(np.nan).tobytes(), np.uint8)  # of the first row
    assert runner.decode(rows) == [expected[0], None]
    runner.reset(1)
    runner.prefill([Chunk(1, TOKENS[:30], 0, 0)], [None])
    assert runner.decode(rows) == expected
    runner.close()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_plain_graphs_agree_with_the_kernels(load: Load, wide: Path) -> None:
    """The same model on a device without kernels of its own."""
    kind: KvDtype = "int4"
    runner, generic = load(wide, kv_dtype=kind), load_generic(load, wide, dtype="float32", kv_dtype=kind)
    prompt = TOKENS[:30]
    expected = runner.logits(Chunk(0, prompt, 0, 0))
    actual = generic.logits(Chunk(1, prompt, 0, 0))
    # A level may be another one where the values before it differ in their last bits.
    assert (actual - expected).std() / expected.std() < MAX_ERROR[kind]
    generic.copy_prefix(1, 2, len(prompt) - 1)
    (token,) = generic.decode([DecodeRow(2, prompt[-1], 29, 29, SampleSpec(Sampling(), 30))])
    assert token == actual[-1].argmax()
    runner.close()
    generic.close()


def test_heads_that_levels_of_4_bits_do_not_fill_are_refused(load: Load, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "llama", head_dim=48)
    with pytest.raises(CheckpointError, match=r"head_dim: .*--kv-dtype int8"):
        load(path, **INT4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("quantize", ["none", "int4"])
def test_gate_with_attention_sinks_and_fp4(load: Load, tmp_path: Path, quantize: Quantize) -> None:
    """gpt-oss in MXFP4, or quantized anew, with drafts and a quantized cache."""
    made = make_checkpoint(tmp_path / "model", "gpt_oss", tied=False, head_dim=32, fields={"sliding_window": 9})
    path, _ = to_stacked_mxfp4(made)
    options = INT8 | {"dtype": "bfloat16", "quantize": quantize}
    report = run_gate(lambda: load(path, **options), requests=16, max_tokens=40, speculates=True)
    assert report.accepted > 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", ["lfm2", "qwen3_5_text"])
def test_gate_beside_recurrent_states(load: Load, tmp_path: Path, family: str) -> None:
    """The states of hybrid models keep their type."""
    path = make_checkpoint(tmp_path, family, tied=family != "qwen3_5_text", layers=4)
    report = run_gate(lambda: load(path, kv_dtype="int8"), requests=12, longest=40, max_tokens=16, speculates=True)
    assert report.most_active > 1
