"""Faulty runner: faults by plan, within the runner contract, and no wrapper without a plan."""

from typing import Any

import pytest

from protocol.request import Sampling
from workers.engine.runner import Chunk, DecodeRow, NotFiniteError, Runner
from workers.faults.faulty_runner import FaultyRunner, with_faults
from workers.faults.plan import Fault, PlannedFault, raising
from workers.sampling.sample_spec import SampleSpec
from workers.scripted.contract import ContractError
from workers.scripted.runner import STATE_BYTES, ScriptedRunner

GREEDY = Sampling()


def scripted(**options: Any) -> ScriptedRunner:
    return ScriptedRunner(slots=4, context=32, prefill_chunks=(4, 8), **options)


def fill(runner: Runner, slot: int, tokens: tuple[int, ...], start: int = 0) -> int | None:
    """Prefill and sample."""
    return runner.prefill([Chunk(slot, tokens, start, start)], [SampleSpec(GREEDY, start + len(tokens))])[0]


def rows(tokens: dict[int, int], start: int) -> list[DecodeRow]:
    return [DecodeRow(slot, token, start, start, SampleSpec(GREEDY, start + 1)) for slot, token in tokens.items()]


def test_a_plan_without_faults_of_calls_costs_nothing() -> None:
    runner = scripted()
    assert with_faults(runner, ()) is runner
    assert with_faults(runner, [Fault("no_memory"), Fault("drop_message")]) is runner
    assert isinstance(with_faults(runner, [Fault("slow")]), FaultyRunner)


def test_without_a_hit_the_wrapper_changes_nothing() -> None:
    plain, faulty = scripted(), with_faults(scripted(), raising((99,)))
    for runner in (plain, faulty):
        runner.prefill([Chunk(0, (1, 2, 3), 0, 0)], [None])
    assert (faulty.capabilities, faulty.graphs_failed, faulty.memory()) == (plain.capabilities, 0, plain.memory())
    plain.copy_prefix(0, 1, 2)
    faulty.copy_prefix(0, 1, 2)
    assert fill(plain, 1, (4,), 2) == fill(faulty, 1, (4,), 2)
    assert plain.decode(rows({0: 5}, 3)) == faulty.decode(rows({0: 5}, 3))
    assert plain.logprobs([0]) == faulty.logprobs([0])
    assert (plain.logits(Chunk(2, (1, 2), 0, 0)) == faulty.logits(Chunk(2, (1, 2), 0, 0))).all()
    faulty.settle()
    faulty.close()


def test_a_failed_call_has_written_rows_that_must_not_be_used() -> None:
    inner = scripted()
    one = with_faults(inner, raising((3,)))
    first = fill(one, 0, (1, 2))
    fill(one, 1, (1, 2))
    with pytest.raises(PlannedFault, match="planned fault in call 3"):
        one.decode(rows({0: 1}, 2))
    with pytest.raises(ContractError, match="slot 0 has 3 rows, the call writes at 2"):
        one.decode(rows({0: 1}, 2))
    assert one.decode(rows({1: 1}, 2)) != [None]
    assert one.decode(rows({0: 1}, 3)) == [None], "a row that was written by a call that failed was read"
    one.reset(0)
    assert fill(one, 0, (1, 2)) == first


def test_rows_before_a_failed_call_may_be_reused() -> None:
    one = with_faults(scripted(), raising((2,)))
    fill(one, 0, (1, 2, 3))
    with pytest.raises(PlannedFault):
        one.prefill([Chunk(0, (4, 5), 3, 3)], [None])
    one.copy_prefix(0, 1, 3)
    one.copy_prefix(0, 2, 4)
    whole = scripted()
    assert fill(one, 1, (6,), 3) == fill(whole, 0, (1, 2, 3, 6))
    assert fill(one, 2, (6,), 4) is None, "it has a row of the call that failed"
    one.copy_prefix(0, 0, 3)
    assert fill(one, 0, (6,), 3) is not None, "it was truncated to valid rows"


def test_a_non_finite_row_fails_alone() -> None:
    one = with_faults(scripted(), [Fault("nan", calls=0, token=7)])
    for slot in range(3):
        fill(one, slot, (1, 2))
    first, bad, third = one.decode(rows({0: 6, 1: 7, 2: 6}, 2))
    assert (bad, first) == (None, third)
    assert first is not None
    assert len(one.logprobs([0, 2])) == 2
    one.reset(1)
    assert one.prefill([Chunk(1, (1, 7), 0, 0)], [None]) == [None]
    assert fill(one, 1, (3,), 2) is None, "what it read was NaN"
    one.reset(1)
    with pytest.raises(NotFiniteError):
        one.logits(Chunk(1, (1, 7), 0, 0))
    assert one.decode(rows({2: 6}, 3)) != [None]


def test_calls_of_all_kinds_are_counted_and_tokens_are_looked_at() -> None:
    done: list[tuple[str, int]] = []
    faults = [Fault("slow", call=2), Fault("kill", calls=0, token=9), Fault("hang", call=4)]
    acts = {kind: lambda fault, call: done.append((fault.kind, call)) for kind in ("slow", "kill", "hang")}
    one = FaultyRunner(scripted(), faults, acts)
    fill(one, 0, (1, 2))
    one.logits(Chunk(1, (1, 9), 0, 0))
    one.decode(rows({0: 9}, 2))
    fill(one, 2, (1,))
    assert done == [("slow", 2), ("kill", 2), ("kill", 3), ("hang", 4)]


def test_errors_of_the_runner_pass_through() -> None:
    one = with_faults(scripted(), raising((9,)))
    with pytest.raises(ContractError, match="0 specs for 1 chunks"):
        one.prefill([Chunk(0, (1,), 0, 0)], [])
    with pytest.raises(ContractError, match="2 specs for 1 chunks"):
        one.prefill([Chunk(0, (1,), 0, 0)], [None, None])


def test_rows_of_a_failed_call_stay_corrupted_where_they_are_written() -> None:
    one = with_faults(scripted(), raising((2,)))
    fill(one, 0, (1, 2, 3))
    with pytest.raises(PlannedFault):
        one.prefill([Chunk(0, (4, 5), 3, 3)], [None])
    one.write_rows(1, 0, one.read_rows(0, 0, 3))
    one.write_rows(2, 0, one.read_rows(0, 0, 4))
    assert fill(one, 1, (6,), 3) == fill(scripted(), 0, (1, 2, 3, 6))
    assert fill(one, 2, (6,), 4) is None, "it has a row of the call that failed"


def test_a_state_after_a_failed_call_stays_corrupted_where_it_is_written() -> None:
    one = with_faults(scripted(state_bytes=STATE_BYTES), raising((2,)))
    fill(one, 0, (1, 2, 3))
    right, kept = one.read_state(0), one.read_rows(0, 0, 3)
    with pytest.raises(PlannedFault):
        one.prefill([Chunk(0, (4, 5), 3, 3)], [None])
    for slot, state in ((1, right), (2, one.read_state(0))):
        one.write_rows(slot, 0, kept)
        one.write_state(slot, state)
    assert fill(one, 1, (6,), 3) == fill(scripted(state_bytes=STATE_BYTES), 0, (1, 2, 3, 6))
    assert fill(one, 2, (6,), 3) is None, "its state has NaN"
