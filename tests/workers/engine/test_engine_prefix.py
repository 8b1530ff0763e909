"""Prefix reuse in the engine: counts, usage, and failures, after which no possibly wrong rows are reused."""

from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.gate import alone
from workers.engine.engine import BatchEngine
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest, RequestRefused
from workers.engine.runner import Chunk, DecodeRow
from workers.engine.scheduling.token_budget import TokenBudget
from workers.engine.step_result import SequenceEnd, StepResult
from workers.faults.faulty_runner import with_faults
from workers.faults.plan import Fault, raising
from workers.sampling.sample_spec import SampleSpec
from workers.scripted.runner import ScriptedRunner

PROMPT = tuple(range(40))


def make(
    runner: ScriptedRunner | None = None, faults: Sequence[Fault] = (), **options: Any
) -> tuple[BatchEngine, ScriptedRunner]:
    runner = runner or ScriptedRunner(slots=2, context=64, prefill_chunks=(4, 8))
    return BatchEngine(with_faults(runner, faults), max_queue=8, **{"step_tokens": 64} | options), runner


def run(engine: BatchEngine, *requests: EngineRequest) -> tuple[list[int], list[SequenceEnd], list[StepResult]]:
    """Serve requests to their ends. Returns the tokens, the ends and the steps."""
    for request in requests:
        engine.submit(request)
    steps = []
    with capture_logs():
        while not engine.idle:
            steps.append(engine.step())
    return [t.token for s in steps for t in s.tokens], [end for s in steps for end in s.ends], steps


def cold(request: EngineRequest) -> list[int]:
    return alone(ScriptedRunner(slots=1, context=64, prefill_chunks=(4, 8)), request)


def test_cached_tokens_are_in_the_end_and_in_the_gauges() -> None:
    engine, runner = make()
    first, second = EngineRequest(1, PROMPT, max_tokens=3), EngineRequest(2, (*PROMPT, 7, 8), max_tokens=3)
    assert [end.cached_tokens for end in run(engine, first)[1]] == [0]
    assert engine.gauges().retained_tokens == 42
    tokens, ends, _ = run(engine, second)
    assert tokens == cold(second)
    assert [(end.cached_tokens, end.prompt_tokens) for end in ends] == [(40, 42)]
    gauges = engine.gauges()
    assert (gauges.prefix_hits, gauges.prefix_tokens, gauges.prefill_tokens) == (1, 40, 42)
    assert (gauges.slots_active, gauges.kv_tokens) == (0, 0)
    assert runner.violations == []


def test_without_a_bound_every_slot_retains_its_last_sequence() -> None:
    """Not more, however much memory there is: `--prefix-bytes 0`."""
    engine, _ = make(prefixes=PrefixPolicy(max_rows=None))
    prompts = [tuple(range(start, start + 40)) for start in (0, 50, 100, 150)]
    retained = []
    for stream, prompt in enumerate(prompts):
        run(engine, EngineRequest(stream, prompt, max_tokens=3))
        retained.append(engine.gauges().retained_tokens)
    assert retained == [42, 84, 84, 84]
    again = [EngineRequest(9 + stream, prompt, max_tokens=3) for stream, prompt in enumerate(prompts[2:])]
    assert [end.cached_tokens for end in run(engine, *again)[1]] == [39, 39]
    assert run(engine, EngineRequest(20, prompts[0], max_tokens=3))[1][0].cached_tokens == 0


def test_a_resumed_request_reuses_the_rows_of_its_cancelled_run() -> None:
    engine, _ = make()
    request = EngineRequest(1, PROMPT, max_tokens=9)
    whole = cold(request)
    engine.submit(request)
    for _ in range(4):
        engine.step()
    assert engine.cancel(1) is not None
    tokens, [end], _ = run(engine, EngineRequest(2, PROMPT, max_tokens=9, resume=tuple(whole[:4])))
    assert tokens == whole[4:]
    assert end.cached_tokens == 43


def test_no_retained_rows_are_used_after_a_failure() -> None:
    engine, runner = make(faults=raising({8}), prefixes=PrefixPolicy(min_tokens=1))
    run(engine, EngineRequest(1, PROMPT, max_tokens=3))
    assert runner.calls == 7, "five chunks and two decode rows"
    # It copies from the first, whose rows may be the cause of the failure.
    _, _, steps = run(engine, EngineRequest(2, (*PROMPT[:36], *PROMPT[::-1][:20]), max_tokens=3))
    assert runner.violations == []
    assert [len(step.failures) for step in steps] == [1]
    assert (engine.gauges().prefix_hits, engine.gauges().retained_tokens) == (0, 0)
    tokens, [end], _ = run(engine, EngineRequest(3, PROMPT, max_tokens=3))
    assert (tokens, end.cached_tokens) == (cold(EngineRequest(3, PROMPT, max_tokens=3)), 0)


class Uncopied(ScriptedRunner):
    """Runner whose copies fail."""

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        raise RuntimeError("the device does not answer")


def test_a_failed_copy_fails_its_request_only() -> None:
    engine, runner = make(Uncopied(slots=2, context=64, prefill_chunks=(4, 8)))
    engine.submit(EngineRequest(1, PROMPT, max_tokens=20))
    engine.step()
    engine.submit(EngineRequest(2, PROMPT, max_tokens=3))
    with capture_logs() as logs:
        result = engine.step()
    assert [failure.stream for failure in result.failures] == [2]
    assert [log["event"] for log in logs] == ["step_failed"]
    _, [end], _ = run(engine)
    assert (end.stream, end.completion_tokens) == (1, 20)
    assert engine.gauges().prefix_hits == 0
    assert runner.violations == []


class OnceUncopied(ScriptedRunner):
    """Runner whose first copy fails."""

    copies = 0

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self.copies += 1
        if self.copies == 1:
            raise RuntimeError("the device does not answer")
        super().copy_prefix(source, target, length)


def test_a_failed_copy_leaves_the_other_prompts_of_its_call() -> None:
    """The other prompt copies from a retained slot that is evicted once the first copy has failed."""
    engine, runner = make(
        OnceUncopied(slots=4, context=64, prefill_chunks=(4, 8, 64)), prefixes=PrefixPolicy(min_tokens=9)
    )
    run(engine, EngineRequest(1, PROMPT, max_tokens=3))
    sharing = [
        EngineRequest(stream, (*PROMPT[:10], *range(50 * stream, 50 * stream + 20)), max_tokens=3) for stream in (2, 3)
    ]
    other = EngineRequest(4, PROMPT[:9:-1][:9], max_tokens=3)
    for request in (*sharing, other):
        engine.submit(request)
    with capture_logs():
        first = engine.step()
    assert [failure.stream for failure in first.failures] == [2]
    assert [token.stream for token in first.tokens] == [3, 4, 3, 4]
    tokens, ends, _ = run(engine)
    assert {end.stream: end.cached_tokens for end in ends} == {3: 10, 4: 0}
    third = [token.token for token in first.tokens if token.stream == 3] + tokens[:1]
    assert third == cold(sharing[1])
    assert runner.violations == []


class Stuck(ScriptedRunner):
    """Runner whose resets fail for a while."""

    failing = 0

    def reset(self, slot: int) -> None:
        if self.failing:
            self.failing -= 1
            raise RuntimeError("the device does not answer")
        super().reset(slot)


def test_a_retained_slot_that_cannot_be_reset_is_skipped() -> None:
    runner = Stuck(slots=2, context=64, prefill_chunks=(4, 8))
    engine, _ = make(runner)
    run(engine, EngineRequest(1, PROMPT, max_tokens=3), EngineRequest(2, PROMPT[::-1], max_tokens=3))
    runner.failing = 1
    tokens, [end], steps = run(engine, EngineRequest(3, tuple(range(9, 30)), max_tokens=3))
    assert [step.failed for step in steps] == [True, False]
    assert (end.stream, tokens) == (3, cold(EngineRequest(3, tuple(range(9, 30)), max_tokens=3)))
    assert runner.violations == []


def test_scoring_takes_a_retained_slot_and_leaves_it_clean() -> None:
    engine, runner = make()
    run(engine, EngineRequest(1, PROMPT, max_tokens=3), EngineRequest(2, PROMPT[::-1], max_tokens=3))
    before = engine.gauges().retained_tokens
    expected = make()[0].score(PROMPT)
    assert engine.score(PROMPT).tolist() == expected.tolist()
    assert engine.gauges().retained_tokens == before - 42
    assert runner.violations == []


def test_scoring_is_refused_if_the_pool_has_no_room() -> None:
    engine, _ = make(kv_tokens=64)
    engine.submit(EngineRequest(1, PROMPT, max_tokens=None))
    engine.step()
    with pytest.raises(RequestRefused, match="no slot"):
        engine.score((1, 2))


def test_without_a_prefix_cache_every_slot_is_reset_at_once() -> None:
    engine, runner = make(prefixes=PrefixPolicy(enabled=False))
    run(engine, EngineRequest(1, PROMPT, max_tokens=3))
    assert runner._history == [[0], [0]]
    assert engine.gauges().retained_tokens == 0


def test_the_cost_of_a_call_counts_whole_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    monkeypatch.setattr(TokenBudget, "record_prefill", lambda _, count, __: rows.append(count))
    runner = ScriptedRunner(slots=3, context=64, prefill_chunks=(16, 64), block_rows=8)
    engine = BatchEngine(runner, max_queue=8, step_tokens=None)
    run(engine, *(EngineRequest(stream, (stream,) * (stream * 4), max_tokens=1) for stream in (1, 2, 3)))
    assert rows == [8 + 8 + 16]
    assert engine.gauges().prefill_tokens == 4 + 8 + 12


def test_the_budget_is_measured_by_default() -> None:
    """On this clock a chunk costs 3 s and a decode step 1 s: one chunk fits into a step of 4 s, two do not."""
    now = 0.0
    sizes: list[int] = []

    class Timed(ScriptedRunner):
        def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
            nonlocal now
            now += 3.0
            sizes.extend(len(chunk.tokens) for chunk in chunks)
            return super().prefill(chunks, specs)

        def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
            nonlocal now
            now += 1.0
            return super().decode(rows)

    runner = Timed(slots=2, context=640, prefill_chunks=(4, 8))
    engine = BatchEngine(runner, max_queue=8, step_tokens=None, clock=lambda: now)
    engine.submit(EngineRequest(1, PROMPT[:4]))
    engine.step()
    engine.submit(EngineRequest(2, PROMPT, max_tokens=2))
    sizes.clear()
    engine.step()
    assert sizes == [4]
