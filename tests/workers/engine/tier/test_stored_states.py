"""Recurrent states in the prefix tier: which are saved and restored, and what a broken one costs."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.gate import alone
from tests.workers.tier_gate import BLOCK_ROWS, engine_with_tier, serve
from workers.engine.engine import BatchEngine
from workers.engine.prefix_match import PinnedPrefix
from workers.engine.request import EngineRequest
from workers.prefix_store.entry import HEADER_BYTES
from workers.scripted.runner import STATE_BYTES, ScriptedRunner

PROMPT = tuple(at * 5 % 257 for at in range(100))
LONGEST = 96
"""The rows of its whole blocks."""
REGULAR = 64
"""The size of the largest chunk, after which a state is taken of any prompt."""


def make(path: Path, max_bytes: int = 1 << 30, **options: Any) -> BatchEngine:
    runner = ScriptedRunner(slots=2, context=256, prefill_chunks=(16, REGULAR), state_bytes=STATE_BYTES, **options)
    return engine_with_tier(runner, path, max_bytes)


def request(stream: int, prompt: tuple[int, ...] = PROMPT, **options: Any) -> EngineRequest:
    return EngineRequest(stream, prompt, **{"max_tokens": 4} | options)


def cold(asked: EngineRequest) -> list[int]:
    return alone(ScriptedRunner(slots=1, context=256, state_bytes=STATE_BYTES), asked)


def states(path: Path) -> list[Path]:
    """The files of states, which are smaller than those of blocks."""
    size = HEADER_BYTES + STATE_BYTES
    return [file for file in path.iterdir() if len(file.name) == 65 and file.stat().st_size == size]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def saved(path: Path) -> Path:
    """A directory with the rows of `PROMPT`, and the state after the last block of them."""
    engine = make(path)
    assert serve(engine, request(1)) == (cold(request(1)), 0)
    engine.close()
    assert len(states(path)) == 1
    return path


def test_the_longest_state_of_a_prompt_is_restored_with_its_rows(saved: Path) -> None:
    engine = make(saved)
    assert serve(engine, request(1)) == (cold(request(1)), LONGEST)
    other = request(2, (*PROMPT[:LONGEST], 1, 2, 3))
    assert serve(engine, other) == (cold(other), LONGEST)
    assert serve(engine, request(3, PROMPT, tenant="other")) == (cold(request(3)), 0)
    assert engine.gauges().stored_tokens == 2 * LONGEST
    engine.close()


def test_a_prefix_that_earlier_prompts_had_gets_a_state_of_its_own(saved: Path) -> None:
    """The second prompt ends what both have in common at 80 tokens: a third one, on a new worker, begins there."""
    engine = make(saved)
    for stream, cached in ((1, LONGEST), (2, 0), (3, 80)):
        asked = request(stream, (*PROMPT[:85], stream, stream, stream)) if stream > 1 else request(stream)
        assert serve(engine, asked) == (cold(asked), cached)
    engine.close()
    sibling = make(saved)
    asked = request(4, (*PROMPT[:85], 9))
    assert serve(sibling, asked) == (cold(asked), 80)
    sibling.close()


def test_a_stream_that_is_lost_goes_on_behind_the_last_state(path: Path) -> None:
    """States of the answer are as far apart as the regular ones of prompts; rows without one are of no use."""
    asked = request(1, max_tokens=120)
    engine = make(path)
    engine.submit(asked)
    for _ in range(90):
        engine.step()
        engine.settle()
    other = make(path)
    tokens = cold(asked)
    resumed = request(1, max_tokens=120, resume=tuple(tokens[:80]))
    assert serve(other, resumed) == (tokens[80:], LONGEST + REGULAR)
    for each in (engine, other):
        each.close()


@pytest.mark.parametrize("damage", ["state", "removed", "block"])
def test_what_is_broken_is_a_miss(saved: Path, damage: str) -> None:
    """Beside the longest state there is one after 64 tokens. A broken block costs the states behind it."""
    engine = make(saved)
    asked = request(7, (*PROMPT[:70], 1))
    for each in (asked, asked):
        serve(engine, each)
    engine.close()
    (longest,) = [file for file in states(saved) if (saved / _block(saved, LONGEST)).name[:32] in file.name]
    damaged = saved / _block(saved, 80) if damage == "block" else longest
    if damage == "removed":
        damaged.unlink()
    else:
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    broken = make(saved)
    with capture_logs() as logs:
        assert serve(broken, request(1)) == (cold(request(1)), REGULAR)
    assert [log["event"] for log in logs] == ([] if damage == "removed" else ["prefix_store_failed"])
    broken.close()


def test_without_any_state_all_is_computed(saved: Path) -> None:
    for file in states(saved):
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    engine = make(saved)
    with capture_logs():
        assert serve(engine, request(1)) == (cold(request(1)), 0)
        assert engine.gauges().stored_tokens == 0
        assert serve(engine, request(2, (*PROMPT, 3))) == (cold(request(2, (*PROMPT, 3))), len(PROMPT))
    engine.close()
    repaired = make(saved)
    assert serve(repaired, request(1)) == (cold(request(1)), LONGEST), "it was saved again"
    repaired.close()


def test_a_sequence_that_is_cancelled_half_restored_leaves_nothing_to_reuse(saved: Path) -> None:
    engine = make(saved)
    assert engine._tier is not None
    ticks = iter(range(1000))
    engine._tier.clock = lambda: float(next(ticks))  # a block a step
    engine.submit(request(1))
    engine.step()
    assert engine.gauges().kv_tokens == BLOCK_ROWS
    engine.cancel(1)
    assert engine.gauges().retained_tokens == 0
    assert serve(engine, request(2)) == (cold(request(2)), LONGEST)
    engine.close()


@pytest.mark.parametrize(("blocks", "pins"), [(2, 1 + 1), (3, 2 + 1), (20, 6 + 1)])
def test_a_pinned_prefix_leaves_room_for_its_state(path: Path, blocks: int, pins: int) -> None:
    """An owner may have an eighth of the store: so many files."""
    engine = make(path, 8 * 4096 * blocks)
    end = serve(engine, request(1, pins=(PinnedPrefix(len(PROMPT), 60.0),)))
    assert end == (cold(request(1)), 0)
    store = engine._tier._store if engine._tier else None
    assert store is not None
    assert len(store._directory._pins()) == pins
    engine.close()


def test_a_pinned_prefix_keeps_its_state(path: Path) -> None:
    engine = make(path)
    asked = request(1, pins=(PinnedPrefix(50, 60.0),))
    assert serve(engine, asked) == (cold(asked), 0)
    assert len(states(path)) == 2, "after 48 tokens, and the longest"
    store = engine._tier._store if engine._tier else None
    assert store is not None
    assert len(store._directory._pins()) == 4, "three blocks, and a state"
    engine.close()
    other = make(path)
    asked = request(2, (*PROMPT[:50], 1, 2))
    assert serve(other, asked) == (cold(asked), 48)
    other.close()


def _block(path: Path, rows: int) -> str:
    """The name of the last block of the first rows of `PROMPT`."""
    engine = make(path)
    assert engine._tier is not None
    sequence = engine._scheduler.submit(request(1), 0.0)
    name = engine._tier._blocks(sequence.cached, rows // BLOCK_ROWS)[rows // BLOCK_ROWS - 1].name
    engine.close()
    return name
