"""Order, pins and cost of the blocks that the prefix tier saves."""

from pathlib import Path
from typing import Any

import pytest

from tests.workers.engine.tier.test_prefix_tier import BLOCKS, PROMPT, cold, files, other, request, scripted
from tests.workers.tier_gate import BLOCK_ROWS, engine_with_tier, serve
from workers.engine.engine import BatchEngine
from workers.engine.prefix_match import PinnedPrefix
from workers.engine.request import EngineRequest
from workers.engine.sparse.sparse_request import SparsePrompt
from workers.engine.step_result import SequenceEnd
from workers.engine.tier import save_budget
from workers.engine.tier.save_budget import BURST_S, DEBT_S, DELAY, PROMPT_SHARE, SHARE, SaveBudget
from workers.prefix_store.entry import stored_size
from workers.prefix_store.pins import MAX_PIN_S
from workers.scripted.runner import ROW_BYTES

BLOCK_BYTES = stored_size(BLOCK_ROWS * ROW_BYTES)
PINNED = 70
"""Tokens of a pinned prefix: four whole blocks."""


def end_of(engine: BatchEngine, asked: EngineRequest) -> SequenceEnd:
    """Serve one request, wait until its rows are saved and return its end."""
    engine.submit(asked)
    ends: list[SequenceEnd] = []
    while not engine.idle:
        ends += engine.step().ends
    engine.settle()
    (end,) = ends
    return end


def pinned(stream: int, rows: int = PINNED, seconds: float = 300.0, **options: Any) -> EngineRequest:
    return request(stream, pins=(PinnedPrefix(rows, seconds),), **options)


def kept(engine: BatchEngine) -> int:
    assert engine._tier is not None
    return len(engine._tier._store._directory._pins())


@pytest.mark.parametrize(("rows", "blocks"), [(0, 0), (15, 0), (16, 1), (70, 4), (100, 6)])
def test_whole_blocks_of_a_prefix_are_pinned_and_reported_as_created(tmp_path: Path, rows: int, blocks: int) -> None:
    engine = engine_with_tier(scripted(), tmp_path / "store")
    end = end_of(engine, pinned(1, rows))
    assert (end.cached_tokens, end.created_tokens, kept(engine)) == (0, blocks * BLOCK_ROWS, blocks)
    engine.close()
    later = engine_with_tier(scripted(), tmp_path / "store")
    end = end_of(later, pinned(1, rows))
    assert (end.cached_tokens, end.created_tokens) == (BLOCKS * BLOCK_ROWS, 0), "it was read, and pinned again"
    assert kept(later) == blocks
    later.close()


def test_of_a_prompt_of_which_tokens_are_left_out_nothing_is_created(tmp_path: Path) -> None:
    engine = engine_with_tier(scripted(sparse=True), tmp_path / "store")
    part = SparsePrompt(kept=((0, 32), (len(PROMPT) - 32, len(PROMPT))))
    end = end_of(engine, pinned(1, sparse=part))
    assert (end.kept_tokens, end.created_tokens, kept(engine)) == (64, 0, 0)
    engine.close()


def test_a_pinned_prefix_outlives_all_others(tmp_path: Path) -> None:
    most = 32 * BLOCK_BYTES
    engine = engine_with_tier(scripted(), tmp_path / "store", most)
    serve(engine, pinned(1))
    for stream in range(2, 40):
        serve(engine, other(stream))
    assert serve(engine, request(50)) == (cold(request(50)), PINNED // BLOCK_ROWS * BLOCK_ROWS)
    engine.close()


def test_an_owner_pins_no_more_than_its_share_whatever_its_salts(tmp_path: Path) -> None:
    engine = engine_with_tier(scripted(), tmp_path / "store", 16 * BLOCK_BYTES)
    assert end_of(engine, pinned(1, tenant="key:salt")).created_tokens == 2 * BLOCK_ROWS
    assert kept(engine) == 2
    assert end_of(engine, pinned(2, tenant="key:another")).created_tokens == 2 * BLOCK_ROWS
    assert kept(engine) == 2
    assert end_of(engine, pinned(3, tenant="other")).created_tokens == 2 * BLOCK_ROWS
    assert kept(engine) == 4
    engine.close()


def test_of_two_pins_the_longer_counts_and_each_has_its_time(tmp_path: Path) -> None:
    engine = engine_with_tier(scripted(), tmp_path / "store")
    pins = (PinnedPrefix(32, MAX_PIN_S), PinnedPrefix(64, 300.0))
    assert end_of(engine, request(1, pins=pins)).created_tokens == 64
    assert engine._tier is not None
    times = sorted(round(each.until) for each in engine._tier._store._directory._pins())
    assert times[3] - times[0] == pytest.approx(MAX_PIN_S - 300.0, abs=2)
    engine.close()


def test_without_a_tier_nothing_is_created() -> None:
    engine = BatchEngine(scripted(), max_queue=4, step_tokens=64)
    assert end_of(engine, pinned(1)).created_tokens == 0
    engine.close()


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves have taken all of the time that they may take, and get no more."""
    monkeypatch.setattr(save_budget, "BURST_S", 0.0)
    monkeypatch.setattr(SaveBudget, "passed", lambda budget, seconds, long_prompts_s: None)


def run(engine: BatchEngine, asked: EngineRequest) -> int:
    """Serve a request beside a long one; return the blocks that are saved while both run."""
    engine.submit(EngineRequest(1000 + asked.stream, other(7).prompt, max_tokens=150))
    engine.step()
    engine.submit(asked)
    while not any(end.stream == asked.stream for end in engine.step().ends):
        pass
    engine.settle()
    assert engine._tier is not None
    return len(files(engine._tier._store._directory.path))


@pytest.mark.usefixtures("spent")
def test_what_is_new_waits_until_the_engine_is_idle(tmp_path: Path) -> None:
    engine = engine_with_tier(scripted(), tmp_path / "store")
    assert run(engine, request(1)) == 0
    while not engine.idle:
        engine.step()
    engine.settle()
    assert len(files(tmp_path / "store")) >= BLOCKS
    engine.close()


@pytest.mark.usefixtures("spent")
def test_what_is_pinned_does_not_wait(tmp_path: Path) -> None:
    engine = engine_with_tier(scripted(), tmp_path / "store")
    run(engine, pinned(1))
    assert kept(engine) == PINNED // BLOCK_ROWS
    engine.close()


@pytest.mark.usefixtures("spent")
def test_what_comes_for_the_second_time_does_not_wait(tmp_path: Path) -> None:
    engine = engine_with_tier(scripted(), tmp_path / "store")
    assert run(engine, request(1)) == 0
    engine.submit(request(2, (*PROMPT[:64], *range(36))))
    while not any(end.stream == 2 for end in engine.step().ends):
        pass
    engine.settle()
    assert len(files(tmp_path / "store")) >= 64 // BLOCK_ROWS
    engine.close()


def test_the_budget_is_a_share_of_the_time_and_a_burst() -> None:
    budget = SaveBudget()
    allowed = []
    for passed, took in ((0.0, BURST_S), (1.0, 0.0), (0.0, SHARE), (1e9, BURST_S)):
        budget.passed(passed)
        budget.took(took / DELAY)
        allowed.append(budget.allows)
    assert allowed == [False, True, False, False], "no more than a burst is saved up"


@pytest.mark.parametrize(("took", "allows"), [(PROMPT_SHARE + SHARE, False), (PROMPT_SHARE + 0.9 * SHARE, True)])
def test_long_prompts_have_a_share_of_their_own(took: float, allows: bool) -> None:
    budget = SaveBudget()
    budget.took(BURST_S / DELAY)
    budget.passed(2.0, long_prompts_s=1.0)
    budget.took(took / DELAY)
    assert budget.allows == allows


def test_little_is_owed() -> None:
    budget = SaveBudget()
    budget.took(1e9)
    allowed = []
    for passed in (DEBT_S / SHARE - 1.0, 2.0):
        budget.passed(passed)
        allowed.append(budget.allows)
    assert allowed == [False, True]
