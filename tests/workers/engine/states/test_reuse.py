"""States with which sequences start: those of slots, snapshots, and those of prompts that others share."""

from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.gate import alone, run_gate
from tests.prefix_gate import run_prefix_gate
from tests.workers.engine.states.stateful import StatefulRunner
from workers.engine.engine import BatchEngine
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest
from workers.engine.speculation.speculator import Speculator
from workers.engine.states.snapshot_store import OVERHEAD_BYTES
from workers.engine.step_result import SequenceEnd, StepResult
from workers.faults.faulty_runner import with_faults
from workers.faults.plan import Fault, raising
from workers.scripted.runner import STATE_BYTES, ScriptedRunner

SHARED = (1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1)
ONE = STATE_BYTES + OVERHEAD_BYTES


def make(
    faults: Sequence[Fault] = (), max_bytes: int = 100 * ONE, step_tokens: int = 64, **options: Any
) -> tuple[BatchEngine, StatefulRunner]:
    runner = StatefulRunner(**options)
    engine = BatchEngine(
        with_faults(runner, faults),
        max_queue=9,
        step_tokens=step_tokens,
        prefixes=PrefixPolicy(min_tokens=1),
        state_cache_bytes=max_bytes,
    )
    return engine, runner


def run(engine: BatchEngine, *requests: EngineRequest) -> tuple[dict[int, list[int]], dict[int, SequenceEnd]]:
    """Serve requests to their ends."""
    steps: list[StepResult] = []
    for request in requests:
        engine.submit(request)
    with capture_logs():
        while not engine.idle:
            steps.append(engine.step())
    tokens: dict[int, list[int]] = {request.stream: [] for request in requests}
    for token in (token for step in steps for token in step.tokens):
        tokens[token.stream].append(token.token)
    return tokens, {end.stream: end for step in steps for end in step.ends}


def cold(request: EngineRequest) -> list[int]:
    return alone(StatefulRunner(slots=1), request)


def test_a_conversation_goes_on_in_its_slot_without_a_snapshot() -> None:
    engine, runner = make(max_bytes=0)
    first = EngineRequest(1, SHARED, max_tokens=5)
    answer = run(engine, first)[0][1]
    second = EngineRequest(2, (*SHARED, *answer, 3, 3), max_tokens=5)
    tokens, ends = run(engine, second)
    assert tokens[2] == cold(second)
    assert ends[2].cached_tokens == len(SHARED) + 4, "all rows of the slot"
    assert runner.written == 0
    assert runner.violations == []


def test_a_prompt_starts_behind_the_nearest_snapshot() -> None:
    """Chunks of 6: regular snapshots after 6 and 12 tokens, and one at the end of the prompt."""
    engine, runner = make()
    run(engine, EngineRequest(1, SHARED, max_tokens=5))
    for stream, (prompt, cached) in enumerate(
        [
            (SHARED, 12),
            ((*SHARED, 3), len(SHARED)),
            ((*SHARED[:14], 3), 12),
            ((*SHARED[:12], 3), 12),
            ((*SHARED[:11], 3), 6),
            ((*SHARED[:5], 3), 0),
        ],
        start=2,
    ):
        request = EngineRequest(stream, prompt, max_tokens=2)
        tokens, ends = run(engine, request)
        assert (tokens[stream], ends[stream].cached_tokens) == (cold(request), cached), prompt
    gauges = engine.gauges()
    assert gauges.state_cache_hits == runner.written > 0
    assert gauges.state_cache_bytes % ONE == 0
    assert runner.violations == []


def test_prompts_that_wait_for_one_share_all_that_they_have_in_common() -> None:
    """As the sequences of a request with `n`: all tokens but the last are computed once."""
    engine, runner = make(slots=4, prefill_chunks=(6, 24))
    requests = [EngineRequest(stream, SHARED, max_tokens=3) for stream in range(3)]
    tokens, ends = run(engine, *requests)
    assert [ends[stream].cached_tokens for stream in range(3)] == [0, 16, 16]
    assert all(tokens[request.stream] == cold(request) for request in requests)
    assert engine.gauges().prefill_tokens == len(SHARED) + 2
    assert runner.violations == []


def test_a_tenant_starts_with_no_state_of_another() -> None:
    engine, _ = make()
    run(engine, EngineRequest(1, SHARED, max_tokens=3, tenant="a"))
    request = EngineRequest(2, SHARED, max_tokens=3, tenant="b")
    tokens, ends = run(engine, request)
    assert (tokens[2], ends[2].cached_tokens) == (cold(request), 0)


def test_without_room_for_a_state_nothing_is_read() -> None:
    engine, runner = make(max_bytes=ONE - 1, slots=4)
    requests = [EngineRequest(stream, SHARED, max_tokens=3) for stream in range(3)]
    tokens, _ = run(engine, *requests)
    assert all(tokens[request.stream] == cold(request) for request in requests)
    assert runner.read == {}
    assert engine.gauges().state_cache_bytes == 0


@pytest.mark.parametrize(
    ("policy", "states"),
    [(PrefixPolicy(min_tokens=17), 1), (PrefixPolicy(min_tokens=18), 0), (PrefixPolicy(False, min_tokens=1), 0)],
    ids=["long enough", "too short", "off"],
)
def test_no_state_is_kept_of_a_prefix_that_is_not_reused(policy: PrefixPolicy, states: int) -> None:
    runner = StatefulRunner()
    engine = BatchEngine(runner, max_queue=9, step_tokens=64, prefixes=policy, state_cache_bytes=9 * ONE)
    run(engine, EngineRequest(1, SHARED, max_tokens=3))
    assert engine.gauges().state_cache_bytes == states * ONE
    assert len(runner.read) == states


def test_snapshots_of_a_prompt_leave_room_for_those_of_others() -> None:
    engine, _ = make(max_bytes=8 * ONE)
    run(engine, EngineRequest(1, (*SHARED, *SHARED, 1), max_tokens=3))
    assert engine.gauges().state_cache_bytes == 3 * ONE, "after 12, 24 and all 35 tokens"


class Unreadable(StatefulRunner):
    """Runner whose states cannot be read."""

    def read_state(self, slot: int, length: int | None = None) -> bytes:
        raise RuntimeError("the device does not answer")


def test_a_state_that_cannot_be_read_costs_no_request() -> None:
    engine = BatchEngine(
        Unreadable(slots=3), max_queue=9, step_tokens=64, prefixes=PrefixPolicy(min_tokens=1), state_cache_bytes=9 * ONE
    )
    requests = [EngineRequest(stream, SHARED, max_tokens=3) for stream in range(3)]
    for request in requests:
        engine.submit(request)
    with capture_logs() as logs:
        while not engine.idle:
            assert not engine.step().failures
    assert {log["event"] for log in logs} == {"state_not_read"}
    assert engine.gauges().sequences_completed == 3


class Unwritable(StatefulRunner):
    """Runner whose first state cannot be written."""

    def write_state(self, slot: int, state: bytes | memoryview) -> None:
        if not self.written:
            self.written += 1
            raise RuntimeError("the device does not answer")
        super().write_state(slot, state)


def test_a_state_that_cannot_be_written_fails_its_request_alone_and_is_dropped() -> None:
    runner = Unwritable()
    engine = BatchEngine(
        runner, max_queue=9, step_tokens=64, prefixes=PrefixPolicy(min_tokens=1), state_cache_bytes=9 * ONE
    )
    run(engine, EngineRequest(1, SHARED, max_tokens=3))
    assert engine.gauges().state_cache_bytes == 3 * ONE
    assert run(engine, EngineRequest(2, SHARED, max_tokens=3))[1] == {}
    assert engine.gauges().state_cache_bytes == 2 * ONE, "that after 12 tokens may be damaged, as the rows"
    request = EngineRequest(3, SHARED, max_tokens=3)
    tokens, ends = run(engine, request)
    assert (tokens[3], ends[3].cached_tokens) == (cold(request), 0)
    assert runner.violations == []


def test_no_state_of_a_failed_prompt_is_used() -> None:
    engine, runner = make(faults=raising({3}))
    assert run(engine, EngineRequest(1, SHARED, max_tokens=3))[1] == {}
    assert engine.gauges().state_cache_bytes == 0
    assert runner.violations == []


def test_states_with_nan_are_dropped_and_the_prompt_is_computed_without_them() -> None:
    """The slot is corrupted from its second call on, and is cancelled before a token shows it."""
    engine, runner = make(faults=[Fault("nan", call=2)], step_tokens=6)
    engine.submit(EngineRequest(1, SHARED, max_tokens=3))
    with capture_logs():
        for _ in range(2):
            engine.step()
    assert engine.gauges().state_cache_bytes == 2 * ONE
    engine.cancel(1)
    request = EngineRequest(2, SHARED, max_tokens=3)
    tokens, ends = run(engine, request)
    assert (tokens[2], ends[2].cached_tokens) == (cold(request), 0)
    assert runner.violations == []


def test_a_preempted_sequence_goes_on_where_its_slot_ends() -> None:
    engine, runner = make(slots=1)
    engine.submit(EngineRequest(1, SHARED, max_tokens=25))
    while engine.gauges().decode_tokens < 4:
        engine.step()
    sequence = engine._scheduler.find(1)
    assert sequence is not None
    engine._scheduler._preempt(sequence, 0.0)
    computed = engine.gauges().prefill_tokens
    while not engine.idle:
        assert not engine.step().failures
    assert engine.gauges().prefill_tokens == computed + 1
    assert runner.written == 0
    assert runner.violations == []


@pytest.mark.parametrize("rollback_rows", [0, 1])
def test_nothing_is_drafted_without_rows_to_take_back(rollback_rows: int) -> None:
    runner = StatefulRunner(decode_rows=8, rollback_rows=rollback_rows)
    with pytest.raises(ValueError, match="rollback_rows"):
        Speculator(runner.capabilities)


def test_the_gates_hold_with_a_recurrent_state() -> None:
    options: dict[str, Any] = {"slots": 8, "context": 64, "prefill_chunks": (4, 16), "state_bytes": STATE_BYTES}
    plain = run_gate(lambda: ScriptedRunner(**options), preempts=True, max_tokens=40)
    assert plain.preemptions
    drafting = options | {"decode_rows": 12, "rollback_rows": 4}
    report = run_gate(lambda: ScriptedRunner(**drafting), preempts=True, max_tokens=40, speculates=True)
    assert 0 < report.accepted < report.drafted
    prefixes = run_prefix_gate(lambda: ScriptedRunner(**options))
    assert prefixes.hits
    assert prefixes.in_place
    assert prefixes.copies
