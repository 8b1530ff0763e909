"""Layers with a window that keep their last rows alone on MLX: the tokens, and the limits of what can be continued."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import make_checkpoint
from tests.gate import alone, run_gate
from tests.prefix_gate import run_prefix_gate
from tests.workers.mlx.conftest import load_runner, quiet
from tests.workers.process.harness.gateway_peer import scripted
from tests.workers.ring_gate import (
    RING_CONTEXT,
    RING_SLOTS,
    RING_TOKENS,
    Kept,
    check_continuations,
    check_refusals,
    check_state,
)
from tests.workers.tier_gate import run_tier_gate, serve
from workers.checkpoints.architectures import window_ring
from workers.checkpoints.checkpoint import ModelConfig
from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest
from workers.engine.runner import Chunk
from workers.load_options import LoadOptions
from workers.mlx.loading import parts
from workers.mlx.runner import MlxRunner
from workers.mlx.runtime.window_ring import ring_rows
from workers.process.startup import context_choice

RING, KEPT = 128, 116
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma3_text": {},
    "gpt_oss": {"tied": False},
    "gemma4_text": {"layers": 4},
}
"""Families with windows beside whole attention: Gemma 4 has layers that read the rows of others."""


@pytest.fixture(autouse=True)
def short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rings are 128 rows, because calls are short."""
    monkeypatch.setattr(parts, "PREFILL_CHUNKS", (32,))
    monkeypatch.setattr(window_ring, "LARGEST_CHUNK", 32)
    monkeypatch.setattr(window_ring, "SPARE_ROWS", 9)


def load_both(path: Path, **options: Any) -> tuple[MlxRunner, MlxRunner]:
    """Load a checkpoint with a ring, and with all rows."""
    both = [
        load_runner(path, slots=RING_SLOTS, context=RING_CONTEXT, window_cache=kind, **options)
        for kind in ("ring", "full")
    ]
    return both[0], both[1]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    """Runners of Gemma 3 with a ring and with all rows, for gates, which close them."""
    both = load_both(make_checkpoint(tmp_path, "gemma3_text", fields={"sliding_window": 16}))
    yield Kept(both[0]), Kept(both[1])
    for runner in both:
        runner.close()


def test_less_memory_is_counted(kept: tuple[MlxRunner, MlxRunner], tmp_path: Path) -> None:
    ring, full = (runner.capabilities for runner in kept)
    assert (ring.window_rows, ring.window_reach, ring.rollback_rows) == (KEPT, 15, 12)
    assert ring.state_bytes == 15 * ring.row_bytes
    assert ring.rows_format not in ("", full.rows_format)
    assert full.state_bytes == full.window_rows == full.window_bytes == 0
    assert ring.row_bytes == full.row_bytes // 2
    assert ring.window_bytes == RING * full.row_bytes // 2
    sizes: dict[str, Any] = {"context": RING_CONTEXT, "max_batch_size": RING_SLOTS, "window_cache": "ring"}
    spec, config = scripted(backend="mlx", model_path=str(tmp_path), **sizes), ModelConfig.from_dir(tmp_path)
    assert context_choice.ring_bytes(spec, "mlx", config) == RING_SLOTS * ring.window_bytes
    assert context_choice.row_bytes(spec, "mlx", config) == ring.row_bytes
    for runner in kept:
        for start in range(0, 288, 32):
            runner.prefill([Chunk(0, RING_TOKENS[start : start + 32], start, start)], [None])
    assert kept[0].memory()["kv"] == 512 * ring.row_bytes + ring.window_bytes  # two steps of growth
    assert kept[1].memory()["kv"] == 512 * full.row_bytes


def test_rings_pay_in_long_contexts(tmp_path: Path) -> None:
    config = ModelConfig.from_dir(make_checkpoint(tmp_path, "gemma3_text", fields={"sliding_window": 16}))
    assert ring_rows(config, RING_SLOTS, 2 * RING) == 0
    assert ring_rows(config, RING_SLOTS, 2 * RING + 1) == RING
    assert ring_rows(ModelConfig.from_dir(make_checkpoint(tmp_path, "llama")), RING_SLOTS, 1 << 15) == 0


def test_tokens_are_those_of_all_rows(kept: tuple[Any, Any]) -> None:
    """Served alone without a ring, and in a batch with one: with drafts, log-probabilities, cancelled and preempted."""
    ring, full = kept
    options: dict[str, Any] = {"longest": 200, "requests": 7}
    report = run_gate(lambda: ring, make_reference=lambda: full, max_tokens=16, speculates=True, **options)
    assert 0 < report.accepted < report.drafted
    report = run_gate(lambda: ring, make_reference=lambda: full, max_tokens=40, preempts=True, **options)
    assert report.preemptions > 0


def test_prefixes_and_slots_are_continued_where_windows_have_their_rows(kept: tuple[Any, Any], tmp_path: Path) -> None:
    check_refusals(kept[0])
    check_continuations(*kept)
    for length in (9, 130, 200):
        check_state(*kept, length)
        for runner in kept:
            runner.close()
    assert run_prefix_gate(lambda: kept[0], begin=200).hits > 0
    run_tier_gate(lambda: kept[0], tmp_path / "store")


def test_a_common_beginning_is_computed_once(kept: tuple[Any, Any]) -> None:
    """By snapshots, where the rings have lost it; without room for any it is computed again."""
    for states, cached in ((1 << 20, 160), (0, 0)):
        engine = BatchEngine(kept[0], max_queue=8, step_tokens=64, state_cache_bytes=states)
        for number, end in enumerate((290, 296)):
            request = EngineRequest(number, RING_TOKENS[:170] + RING_TOKENS[end - 120 : end], max_tokens=4)
            cold = alone(kept[1], request)
            assert serve(engine, request) == (cold, cached if number else 0)
        assert engine.gauges().state_cache_bytes <= states
        kept[0].close()


def test_a_call_is_no_longer_than_a_ring(kept: tuple[MlxRunner, MlxRunner]) -> None:
    ring, full = kept
    most = RING - 15
    assert (ring.logits(Chunk(0, RING_TOKENS[:most], 0, 0)) == full.logits(Chunk(0, RING_TOKENS[:most], 0, 0))).all()
    with pytest.raises(ValueError, match=f"tokens: {most + 1} in a call, a ring has room for {most}"):
        ring.logits(Chunk(1, RING_TOKENS[: most + 1], 0, 0))


@pytest.mark.parametrize(("family", "kv_dtype"), [("gpt_oss", "int8"), ("gemma4_text", "int4")])
def test_quantized_rings_of_other_families(tmp_path: Path, family: str, kv_dtype: Any) -> None:
    """With sinks, and with layers that read the rows of others."""
    path = make_checkpoint(tmp_path, family, fields={"sliding_window": 16}, **FAMILIES[family])
    both = load_both(path, kv_dtype=kv_dtype)
    assert both[0].capabilities.window_rows == KEPT
    ring, full = (Kept(runner) for runner in both)
    report = run_gate(
        lambda: ring, make_reference=lambda: full, requests=5, longest=200, max_tokens=10, speculates=True
    )
    assert report.most_active == RING_SLOTS
    check_continuations(ring, full)
    for runner in both:
        runner.close()


@pytest.mark.exhaustive
def test_the_head_for_multi_token_prediction_drafts_beside_rings(tmp_path: Path) -> None:
    """Its layer keeps all rows, and goes along with snapshots."""
    fields = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
    path = make_checkpoint(tmp_path, "mimo", tied=False, fields=fields)
    options = LoadOptions(device="cpu", slots=RING_SLOTS, context=RING_CONTEXT, window_cache="ring", cache_dir=tmp_path)
    runner = MlxRunner.load(path, ModelConfig.from_dir(path).with_mtp(), options, quiet)
    assert runner.draft_head is not None
    assert runner.capabilities.window_rows == KEPT
    kept: Any = Kept(runner)
    report = run_gate(lambda: kept, requests=12, longest=200, max_tokens=30, by_head=True)
    assert report.drafted > 50
    assert run_prefix_gate(lambda: kept, begin=200).hits > 0
    run_tier_gate(lambda: kept, tmp_path / "store")
    runner.close()
