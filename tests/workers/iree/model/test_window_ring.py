"""Layers with a window that keep their last rows alone: the tokens, and the limits of what can be continued."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.errors import ErrorCode
from tests.checkpoints import make_checkpoint
from tests.gate import alone, run_gate
from tests.prefix_gate import run_prefix_gate
from tests.workers.iree.conftest import Load, fetch_all
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
from workers.engine.request import EngineRequest, RequestRefused
from workers.engine.sparse.sparse_request import SparsePrompt
from workers.iree.build import graph_list
from workers.iree.model.window_ring import ring_rows
from workers.iree.runner import IreeRunner

RING, KEPT = 128, 56


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A model whose ring is a single KV block, because calls are short."""
    path = make_checkpoint(tmp_path_factory.mktemp("ring"), "gemma3_text", fields={"sliding_window": 16})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_list, "PREFILL_CHUNKS", (32,))
        patch.setattr(window_ring, "LARGEST_CHUNK", 32)
        patch.setattr(window_ring, "SPARE_ROWS", 9)
        yield path


@pytest.fixture(scope="module")
def runners(model: Path, load: Load) -> Iterator[tuple[IreeRunner, IreeRunner]]:
    """With a ring, and with all rows."""
    both = [load(model, slots=RING_SLOTS, context=RING_CONTEXT, window_cache=kind) for kind in ("ring", "full")]
    yield both[0], both[1]
    for runner in both:
        runner.close()


@pytest.fixture
def kept(runners: tuple[IreeRunner, IreeRunner]) -> tuple[Any, Any]:
    """The runners, for gates, which close them."""
    for runner in runners:
        for slot in range(RING_SLOTS):
            runner.reset(slot)
    return tuple(Kept(runner) for runner in runners)  # type: ignore[return-value]


def test_a_ring_holds_whole_blocks_and_pays_in_long_contexts(tmp_path: Path) -> None:
    path = make_checkpoint(
        tmp_path, "gemma3_text", layers=6, fields={"sliding_window": 512, "sliding_window_pattern": 6}
    )
    config = ModelConfig.from_dir(path)
    rows = ring_rows(config, 8, 1 << 15)
    assert (rows, rows % 128) == (1408, 0)
    assert ring_rows(config, 8, 2 * rows) == 0
    assert ring_rows(config, 8, 2 * rows + 1) == rows
    assert config.with_ring().kv_groups == ((5,), (0, 1, 2, 3, 4))
    assert ring_rows(ModelConfig.from_dir(make_checkpoint(tmp_path, "llama")), 8, 1 << 15) == 0


def test_less_memory_is_counted(kept: tuple[IreeRunner, IreeRunner]) -> None:
    ring, full = (runner.capabilities for runner in kept)
    assert (ring.window_rows, ring.window_reach) == (KEPT, 15)
    assert ring.state_bytes == 15 * ring.row_bytes
    assert ring.rows_format not in ("", full.rows_format)
    assert full.state_bytes == 0
    assert full.window_rows == full.window_bytes == 0
    assert ring.row_bytes == full.row_bytes // 2
    assert ring.window_bytes == (RING + 64) * full.row_bytes // 2
    assert kept[0].memory()["kv"] == RING_SLOTS * ((RING_CONTEXT + 64) * ring.row_bytes + ring.window_bytes)


def test_tokens_are_those_of_all_rows(kept: tuple[Any, Any]) -> None:
    """Served alone without a ring, and in a batch with one: with drafts, log-probabilities, cancelled and preempted."""
    ring, full = kept
    report = run_gate(lambda: ring, make_reference=lambda: full, requests=16, max_tokens=16, speculates=True)
    assert 0 < report.accepted < report.drafted
    report = run_gate(lambda: ring, make_reference=lambda: full, requests=16, max_tokens=40, preempts=True)
    assert report.preemptions > 0


@pytest.mark.parametrize("begin", [40, 200])
def test_prefixes_are_reused_while_windows_have_their_rows(kept: tuple[Any, Any], begin: int) -> None:
    report = run_prefix_gate(lambda: kept[0], begin=begin)
    assert report.hits > 0


def test_a_slot_is_continued_where_windows_have_their_rows(kept: tuple[Any, Any]) -> None:
    check_continuations(*kept)
    windows = [array.window for array in kept[0]._buffers.kv if array.window is not None]
    assert len(windows) == 2
    assert not any(np.any(window.reshape(*window.shape[:4], -1)[..., :16]) for window in windows)


@pytest.mark.parametrize(
    "length", [9, 96, 130, 200], ids=["less than a window", "whole tiles", "around the end", "far"]
)
def test_a_state_is_the_rows_that_windows_read(kept: tuple[Any, Any], length: int) -> None:
    check_state(*kept, length)


def test_states_of_other_slots_and_sizes_are_refused(kept: tuple[Any, Any]) -> None:
    check_refusals(kept[0])


def test_a_common_beginning_is_computed_once(kept: tuple[Any, Any]) -> None:
    """By snapshots, where the rings have lost it; without room for any it is computed again."""
    for states, cached in ((1 << 20, 192), (0, 0)):
        engine = BatchEngine(kept[0], max_queue=8, step_tokens=64, state_cache_bytes=states)
        for number, end in enumerate((290, 296)):
            request = EngineRequest(number, RING_TOKENS[:200] + RING_TOKENS[end - 90 : end], max_tokens=4)
            cold = alone(kept[1], request)
            assert serve(engine, request) == (cold, cached if number else 0)
        assert engine.gauges().state_cache_bytes <= states
        kept[0].close()


def test_blocks_and_states_are_restored(kept: tuple[Any, Any], tmp_path: Path) -> None:
    run_tier_gate(lambda: kept[0], tmp_path / "store")


@pytest.mark.exhaustive
def test_the_head_for_multi_token_prediction_drafts_beside_rings(model: Path, load: Load, tmp_path: Path) -> None:
    """Its layer keeps all rows, and goes along with snapshots."""
    fields = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
    path = make_checkpoint(tmp_path, "mimo", tied=False, fields=fields)
    runner = load(path, slots=RING_SLOTS, context=RING_CONTEXT, window_cache="ring", mtp=True)
    fetch_all(runner, "mtp", "rows")
    assert runner.capabilities.window_rows == KEPT
    kept: Any = Kept(runner)
    report = run_gate(lambda: kept, requests=16, longest=120, max_tokens=40, by_head=True)
    assert report.accepted <= report.drafted > 50
    assert run_prefix_gate(lambda: kept, begin=200).hits > 0
    run_tier_gate(lambda: kept, tmp_path / "store")
    runner.close()


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_quantized_rings(model: Path, load: Load, tmp_path: Path, kind: Any) -> None:
    """Tokens are those of a quantized cache with all rows; a state has the bytes of quantized rows."""
    path = make_checkpoint(tmp_path, "gemma3_text", head_dim=32, fields={"sliding_window": 16})
    both = [
        load(path, slots=RING_SLOTS, context=RING_CONTEXT, kv_dtype=kind, window_cache=cache)
        for cache in ("ring", "full")
    ]
    ring, full = (Kept(runner) for runner in both)
    assert ring.capabilities.row_bytes == both[1].capabilities.row_bytes // 2
    report = run_gate(lambda: ring, make_reference=lambda: full, requests=8, max_tokens=12, speculates=True)
    assert report.accepted > 0
    check_continuations(ring, full)
    check_state(ring, full, 200)
    for runner in both:
        runner.close()


def test_a_part_of_a_prompt_is_refused_by_name(kept: tuple[Any, Any]) -> None:
    request = EngineRequest(1, RING_TOKENS[:100], max_tokens=2, sparse=SparsePrompt(kept=((0, 32), (68, 100))))
    with pytest.raises(RequestRefused, match=r"`sparse_prefill`: .* --window-cache full") as refused:
        BatchEngine(kept[0], max_queue=1, step_tokens=64).submit(request)
    assert (refused.value.code, refused.value.field) == (ErrorCode.UNSUPPORTED, "sparse_prefill")
