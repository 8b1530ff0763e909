"""The prefix tier in the engine, on the scripted runner: what is saved and restored when, and what failures cost."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from protocol.scheduling import NORMAL, Urgency
from tests.gate import alone
from tests.workers.tier_gate import BLOCK_ROWS, engine_with_tier, run_tier_gate, serve
from workers.engine.engine import BatchEngine
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest
from workers.engine.runner import Runner
from workers.engine.step_result import SequenceStart, Token
from workers.engine.tier.prefix_tier import IDLE_WAIT_S, PrefixTier
from workers.faults.faulty_runner import with_faults
from workers.faults.plan import raising
from workers.prefix_store.block import RowBlock
from workers.prefix_store.entry import stored_size
from workers.prefix_store.store import PrefixStore
from workers.scripted.runner import ROW_BYTES, STATE_BYTES, ScriptedRunner

STATEFUL = {"state_bytes": STATE_BYTES}
PROMPT = tuple(at * 5 % 257 for at in range(100))
BLOCKS = 6
"""Whole blocks of the prompt."""


def scripted(**options: Any) -> ScriptedRunner:
    return ScriptedRunner(slots=2, context=256, prefill_chunks=(16, 64), **options)


def request(stream: int, prompt: tuple[int, ...] = PROMPT, **options: Any) -> EngineRequest:
    return EngineRequest(stream, prompt, **{"max_tokens": 4} | options)


def cold(asked: EngineRequest) -> list[int]:
    return alone(scripted(), asked)


def other(stream: int) -> EngineRequest:
    """A request that shares nothing with others."""
    return request(stream, tuple((stream * 31 + at * 7) % 251 for at in range(40)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def saved(path: Path) -> Path:
    """A directory with the rows of `PROMPT`."""
    engine = engine_with_tier(scripted(), path)
    assert serve(engine, request(1)) == (cold(request(1)), 0)
    engine.close()
    return path


def files(path: Path) -> list[Path]:
    return [file for file in path.iterdir() if file.name not in ("lock", "users")]


@pytest.mark.parametrize("options", [{}, STATEFUL], ids=["rows", "states"])
def test_gate(path: Path, options: dict[str, int]) -> None:
    run_tier_gate(lambda: scripted(**options), path)


def test_a_prefix_outlives_the_requests_that_take_its_slot(path: Path) -> None:
    engine = engine_with_tier(scripted(), path)
    serve(engine, request(1))
    for stream in range(2, 14):
        serve(engine, other(stream))
    assert serve(engine, request(20)) == (cold(request(20)), BLOCKS * BLOCK_ROWS)
    engine.close()


def test_rows_are_saved_while_their_sequence_runs(path: Path) -> None:
    """A worker that is lost has left what it had computed, but for the last few steps."""
    engine = engine_with_tier(scripted(), path)
    engine.submit(request(1, max_tokens=100))
    for _ in range(60):
        engine.step()
        engine.settle()
    assert len(files(path)) == (len(PROMPT) + 55) // BLOCK_ROWS
    other_worker = engine_with_tier(scripted(), path)
    resume = tuple(cold(request(1, max_tokens=100))[:50])
    tokens, cached = serve(other_worker, request(1, max_tokens=100, resume=resume))
    assert ([*resume, *tokens], cached) == (cold(request(1, max_tokens=100)), 144)
    engine.close()
    other_worker.close()


def test_a_tenant_finds_no_rows_of_another(saved: Path) -> None:
    engine = engine_with_tier(scripted(), saved)
    assert serve(engine, request(1, tenant="other")) == (cold(request(1)), 0)
    engine.close()


def test_rows_of_another_format_are_not_found(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.scripted.runner.ROWS_FORMAT", "scripted-0")
    engine = engine_with_tier(scripted(), saved)
    assert serve(engine, request(1))[1] == 0
    engine.close()


def test_a_longer_prefix_in_a_slot_comes_first(saved: Path) -> None:
    engine = engine_with_tier(scripted(), saved)
    serve(engine, request(1))
    assert serve(engine, request(2)) == (cold(request(2)), len(PROMPT) - 1)
    engine.close()


def test_the_tier_continues_a_shorter_prefix_of_a_slot(saved: Path) -> None:
    """The slot has 40 rows of it: two blocks, and a part that is restored with its block."""
    engine = engine_with_tier(scripted(), saved)
    serve(engine, request(1, PROMPT[:40], tenant=""))
    taken = engine._tier.tokens if engine._tier else -1
    assert serve(engine, request(2)) == (cold(request(2)), BLOCKS * BLOCK_ROWS)
    assert engine._tier is not None
    assert engine._tier.tokens - taken == (BLOCKS - 2) * BLOCK_ROWS
    engine.close()


@pytest.mark.parametrize("damaged", [0, 3, 5])
def test_after_a_damaged_block_the_rest_is_computed(saved: Path, damaged: int) -> None:
    first = min(files(saved), key=lambda file: file.stat().st_mtime_ns)
    by_parent = {file.name.partition("-")[2]: file for file in files(saved)}
    chain = [first]
    while chain[-1].name.partition("-")[0] in by_parent:
        chain.append(by_parent[chain[-1].name.partition("-")[0]])
    assert len(chain) == BLOCKS
    chain[damaged].write_bytes(chain[damaged].read_bytes()[:-1] + b"?")
    engine = engine_with_tier(scripted(), saved)
    with capture_logs() as logs:
        assert serve(engine, request(1)) == (cold(request(1)), damaged * BLOCK_ROWS)
    assert [log["event"] for log in logs] == ["prefix_store_failed"]
    engine.close()
    repaired = engine_with_tier(scripted(), saved)
    assert serve(repaired, request(1)) == (cold(request(1)), BLOCKS * BLOCK_ROWS), "it was saved again"
    repaired.close()


def test_restores_leave_time_for_those_that_decode(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block a step, where one takes all the time that there is."""
    ticks = count()
    runner = scripted()
    tier = PrefixTier(PrefixStore(saved, 1 << 20), runner, block_rows=BLOCK_ROWS, clock=lambda: float(next(ticks)))
    engine = BatchEngine(runner, max_queue=8, step_tokens=64, tier=tier)
    engine.submit(request(7, other(7).prompt, max_tokens=30))
    engine.step()
    engine.submit(request(1))
    steps = 0
    tokens: list[Token] = []
    while not any(token.stream == 1 for token in tokens):
        tokens += engine.step().tokens
        steps += 1
    assert steps == BLOCKS
    assert len([token for token in tokens if token.stream == 7]) == BLOCKS
    assert runner.violations == []
    engine.close()


def test_a_sequence_that_is_cancelled_half_restored_leaves_valid_rows(saved: Path) -> None:
    ticks = count()
    runner = scripted()
    tier = PrefixTier(PrefixStore(saved, 1 << 20), runner, block_rows=BLOCK_ROWS, clock=lambda: float(next(ticks)))
    engine = BatchEngine(runner, max_queue=8, step_tokens=64, prefixes=PrefixPolicy(min_tokens=1), tier=tier)
    engine.submit(request(1))
    engine.step()
    assert engine.gauges().kv_tokens == BLOCK_ROWS
    assert engine.cancel(1) is not None
    assert engine.gauges().kv_tokens == 0
    assert serve(engine, request(2)) == (cold(request(2)), BLOCKS * BLOCK_ROWS)
    assert runner.violations == []
    engine.close()


def expected_of(engine: BatchEngine) -> set[int]:
    assert engine._tier is not None
    return engine._tier._expected


def test_blocks_are_read_while_a_sequence_waits_for_a_slot(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_with_tier(scripted(), saved)
    for stream in (7, 8):
        engine.submit(other(stream))
        engine.step()
    assert engine._tier is not None
    ahead = engine._tier._store._ahead
    engine.submit(request(1))
    engine.step()
    assert expected_of(engine) == {1}
    with ahead._changed:
        assert ahead._changed.wait_for(lambda: len(ahead._ready) == BLOCKS, 30)
    monkeypatch.setattr(engine._tier._store, "_read", lambda buffer, block: None)  # the disk is gone
    tokens = []
    while not engine.idle:
        tokens += [token.token for token in engine.step().tokens if token.stream == 1]
    assert tokens == cold(request(1))
    assert engine._tier.tokens == BLOCKS * BLOCK_ROWS
    assert expected_of(engine) == set()
    engine.close()


def test_a_waiting_sequence_that_is_cancelled_is_not_read_for(saved: Path) -> None:
    engine = engine_with_tier(scripted(), saved)
    for stream in (7, 8):
        engine.submit(other(stream))
        engine.step()
    engine.submit(request(1))
    assert expected_of(engine) == {1}
    assert engine.cancel(1) is not None
    assert expected_of(engine) == set()
    assert engine._tier is not None
    assert not engine._tier._store._ahead._queue
    engine.close()


def test_what_a_slot_has_is_not_read(saved: Path) -> None:
    engine = engine_with_tier(scripted(), saved)
    serve(engine, request(1))
    engine.submit(request(2))
    assert expected_of(engine) == set()
    engine.close()


def test_all_slots_restore_and_the_queue_follows(saved: Path) -> None:
    runner = scripted()
    engine = engine_with_tier(runner, saved)
    asked = [request(stream, PROMPT[: 80 + stream]) for stream in range(6)]
    for each in asked:
        engine.submit(each)
    got: dict[int, list[int]] = {each.stream: [] for each in asked}
    while not engine.idle:
        for token in engine.step().tokens:
            got[token.stream].append(token.token)
    assert got == {each.stream: cold(each) for each in asked}
    assert runner.violations == []
    engine.close()


class Unwritable(ScriptedRunner):
    def write_rows(self, slot: int, start: int, rows: bytes | memoryview) -> None:
        raise RuntimeError("the device does not answer")


def test_a_restore_that_fails_on_the_device_fails_its_request_only(saved: Path) -> None:
    engine = engine_with_tier(Unwritable(slots=2, context=256, prefill_chunks=(16, 64)), saved)
    engine.submit(other(7))
    engine.submit(request(1))
    failed, ended = [], []
    with capture_logs():
        while not engine.idle:
            result = engine.step()
            failed += [failure.stream for failure in result.failures]
            ended += [end.stream for end in result.ends]
    assert (failed, ended) == ([1], [7])
    engine.close()


class Unreadable(ScriptedRunner):
    def read_rows(self, slot: int, start: int, end: int) -> bytes:
        raise RuntimeError("the device does not answer")


def test_a_save_that_fails_on_the_device_ends_saves_and_no_request(path: Path) -> None:
    engine = engine_with_tier(Unreadable(slots=2, context=256, prefill_chunks=(16, 64)), path)
    with capture_logs() as logs:
        assert serve(engine, request(1)) == (cold(request(1)), 0)
        assert serve(engine, other(2)) == (cold(other(2)), 0)
    assert [log["event"] for log in logs] == ["prefix_not_saved"]
    assert files(path) == []
    engine.close()


def test_rows_that_lead_to_non_finite_logits_are_dropped(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the worker that saved them had not noticed: the prompt is computed anew."""
    engine = engine_with_tier(with_faults(scripted(), raising((99,))), saved)
    assert engine._tier is not None
    monkeypatch.setattr(engine._tier._store, "read", lambda block, size: memoryview(b"\xff" * size))
    with capture_logs() as logs:
        assert serve(engine, request(1)) == (cold(request(1)), 0)
    assert [log["event"] for log in logs] == ["prefix_distrusted"]
    assert files(saved) == []
    engine.close()


def test_rows_that_no_token_has_proven_are_not_saved(path: Path) -> None:
    engine = engine_with_tier(scripted(), path)
    engine.submit(request(1))
    engine.step()  # of the budget of 64 tokens
    engine.cancel(1)
    while not engine.idle:
        engine.step()
    engine.settle()
    assert files(path) == []
    engine.close()


def begun(path: Path, monkeypatch: pytest.MonkeyPatch, long_prompt: int) -> BatchEngine:
    """Return an engine that has computed 64 tokens of a prompt of 100; prompts of `long_prompt` tokens are long."""
    monkeypatch.setattr("workers.engine.engine.LONG_PROMPT", long_prompt)
    engine = engine_with_tier(scripted(), path)
    engine.submit(request(1))
    engine.step()  # of the budget of 64 tokens
    engine.settle()
    return engine


@pytest.mark.parametrize(("long_prompt", "blocks"), [(len(PROMPT), 4), (len(PROMPT) + 1, 0)])
def test_a_long_prompt_is_saved_while_it_is_computed(
    path: Path, monkeypatch: pytest.MonkeyPatch, long_prompt: int, blocks: int
) -> None:
    lost = begun(path, monkeypatch, long_prompt)
    assert len(files(path)) == blocks
    standby = engine_with_tier(scripted(), path)
    assert serve(standby, request(1)) == (cold(request(1)), blocks * BLOCK_ROWS)
    standby.close()
    lost.close()


def test_blocks_of_a_long_prompt_are_saved_in_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token proves the blocks that are left over."""
    monkeypatch.setattr("workers.engine.tier.prefix_tier.EARLY_RUN", 5)
    engine = begun(path, monkeypatch, len(PROMPT))  # 4 blocks
    assert files(path) == []
    engine.step()
    engine.settle()
    assert len(files(path)) == BLOCKS
    engine.close()


def test_a_block_that_is_there_without_the_one_before_is_saved_once(saved: Path) -> None:
    """Blocks are not looked up behind one that is missing."""
    by_parent = {file.name.partition("-")[2]: file.name.partition("-")[0] for file in files(saved)}
    (first,) = set(by_parent) - set(by_parent.values())
    store = PrefixStore(saved, 1 << 20)
    store.discard(RowBlock(bytes.fromhex(by_parent[first]), bytes.fromhex(first)))
    store.settle()
    assert len(files(saved)) == BLOCKS - 1
    engine = engine_with_tier(scripted(), saved)
    assert serve(engine, request(1)) == (cold(request(1)), 0)
    engine.settle()
    assert len(files(saved)) == BLOCKS
    assert engine.gauges().stored_bytes == BLOCKS * stored_size(BLOCK_ROWS * ROW_BYTES)
    engine.close()
    store.close()


@pytest.mark.parametrize("own", [True, False])
def test_what_a_prompt_that_fails_has_saved_is_dropped(path: Path, monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
    """But not what was there before, which a token has proven."""
    if not own:
        earlier = engine_with_tier(scripted(), path)
        serve(earlier, request(1, PROMPT[: 2 * BLOCK_ROWS]))
        earlier.close()
    engine = begun(path, monkeypatch, len(PROMPT))
    assert len(files(path)) == (4 if own else BLOCKS)
    monkeypatch.setattr(engine._runner, "prefill", lambda chunks, specs: [][0])
    with capture_logs():
        assert [failure.stream for failure in engine.step().failures] == [1]
    engine.settle()
    assert len(files(path)) == (0 if own else 2)
    engine.close()


@pytest.mark.parametrize(("delivered", "steps"), [(1, 1), (0, BLOCKS // 2)])
def test_restores_of_a_stream_that_was_lost_give_way_less(path: Path, saved: Path, delivered: int, steps: int) -> None:
    """Its client waits for the next token as those of the streams that decode do. A block takes 12 ms here."""
    ticks = count()
    runner = scripted()
    tier = PrefixTier(PrefixStore(saved, 1 << 20), runner, block_rows=BLOCK_ROWS, clock=lambda: 0.012 * next(ticks))
    engine = BatchEngine(runner, max_queue=8, step_tokens=64, tier=tier)
    engine.submit(request(7, other(7).prompt, max_tokens=30))
    engine.step()
    engine.submit(request(1, resume=tuple(cold(request(1))[:delivered])))
    taken = 0
    while not tier.hits:
        engine.step()
        taken += 1
    assert taken == steps
    engine.close()


@pytest.mark.parametrize(
    ("urgency", "first"), [(NORMAL, 1), (Urgency(NORMAL.level + 1), 2)], ids=["equal", "less-urgent"]
)
def test_a_stream_that_was_lost_is_restored_before_new_prompts_of_its_level(
    saved: Path, urgency: Urgency, first: int
) -> None:
    """A block a step."""
    ticks = count()
    runner = scripted()
    tier = PrefixTier(PrefixStore(saved, 1 << 20), runner, block_rows=BLOCK_ROWS, clock=lambda: float(next(ticks)))
    engine = BatchEngine(runner, max_queue=8, step_tokens=64, tier=tier)
    engine.submit(request(2))
    lost = request(1, resume=tuple(cold(request(1))[:1]), urgency=urgency)
    engine.submit(lost)
    engine.step()
    rows = {stream: engine._scheduler.find(stream) for stream in (1, 2)}
    assert [stream for stream, sequence in rows.items() if sequence and sequence.cached.rows] == [first]
    engine.close()


@pytest.mark.parametrize("blocks", [1, 3])
def test_a_store_that_is_too_small_keeps_what_fits(path: Path, blocks: int) -> None:
    most = blocks * stored_size(BLOCK_ROWS * ROW_BYTES)
    engine = engine_with_tier(scripted(), path, most)
    assert serve(engine, request(1)) == (cold(request(1)), 0)
    for stream in range(2, 6):
        assert serve(engine, other(stream)) == (cold(other(stream)), 0)
    assert serve(engine, request(1))[0] == cold(request(1))
    assert sum(stored_size(BLOCK_ROWS * ROW_BYTES) for _ in files(path)) <= most
    engine.close()


def test_a_full_queue_of_the_store_delays_saves_and_no_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_with_tier(scripted(), path)
    assert engine._tier is not None
    store, room = engine._tier._store, [False]
    has_room: Callable[[float], bool] = store.has_room
    monkeypatch.setattr(store, "has_room", lambda wait_s=0.0: room[0] and has_room(wait_s))
    engine.submit(request(1))
    ends: list[int] = []
    for _ in range(20):
        ends += [end.stream for end in engine.step().ends]
    assert ends == [1]
    assert (engine.idle, files(path)) == (False, [])
    room[0] = True
    while not engine.idle:
        engine.step()
    engine.settle()
    assert len(files(path)) == BLOCKS
    engine.close()


def test_an_idle_step_waits_no_longer_for_a_slow_disk_however_many_blocks_it_saves(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a block each 40 ms. A request that has arrived meanwhile waits for the step."""
    engine = engine_with_tier(scripted(), path)
    assert engine._tier is not None
    now, waited = 0.0, 0.0
    monkeypatch.setattr(engine._tier, "clock", lambda: now)

    def has_room(wait_s: float = 0.0) -> bool:
        nonlocal now, waited
        now, waited = now + min(wait_s, 0.04), waited + min(wait_s, 0.04)
        return wait_s >= 0.04

    monkeypatch.setattr(engine._tier._store, "has_room", has_room)
    engine.submit(request(1))
    longest = 0.0
    while not engine.idle:
        waited = 0.0
        engine.step()
        longest = max(longest, waited)
    engine.settle()
    assert len(files(path)) == BLOCKS
    assert longest == pytest.approx(IDLE_WAIT_S)
    engine.close()


def test_a_prompt_with_log_probabilities_is_computed(saved: Path) -> None:
    engine = engine_with_tier(scripted(), saved)
    asked = request(1, prompt_logprobs=True)
    assert serve(engine, asked) == (cold(request(1)), 0)
    engine.close()


def test_runners_whose_rows_depend_on_chunks_have_no_tier() -> None:
    runner: Runner = scripted(exact_rows=False)
    assert not PrefixTier.serves(runner.capabilities)
    assert PrefixTier.serves(scripted().capabilities)


def test_the_first_token_is_reported_with_the_tokens_that_were_restored(saved: Path) -> None:
    engine = engine_with_tier(scripted(), saved)
    for stream, reported in ((1, (BLOCKS * BLOCK_ROWS,) * 2), (2, (len(PROMPT) - 1, 0))):  # of the tier, and of a slot
        engine.submit(request(stream))
        starts: list[SequenceStart] = []
        while not engine.idle:
            starts += engine.step().starts
        assert [(start.cached_tokens, start.stored_tokens) for start in starts] == [reported]
    engine.close()


def test_a_tier_is_shared_by_those_with_its_directory_and_format(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, elsewhere = (engine_with_tier(scripted(), each, 6400) for each in (path, path, tmp_path / "elsewhere"))
    assert one.shared_tier == two.shared_tier
    assert one.shared_tier.id not in ("", elsewhere.shared_tier.id)
    assert (one.shared_tier.block, one.shared_tier.rows) == (BLOCK_ROWS, 6400 // ROW_BYTES)
    monkeypatch.setattr("workers.scripted.runner.ROWS_FORMAT", "scripted-0")
    other = engine_with_tier(scripted(), path)
    assert other.shared_tier.id != one.shared_tier.id
    for engine in (one, two, elsewhere, other):
        engine.close()
    assert not BatchEngine(scripted(), max_queue=1, step_tokens=64).shared_tier.id
