"""The failure gate passes on the scripted runner, and fails on an engine that drops or keeps the wrong rows."""

from typing import Literal
from unittest import mock

import pytest

from tests.failure_gate import run_failure_gate
from workers.engine.kv_slots import SlotTable
from workers.engine.scheduler import Scheduler
from workers.engine.sequence import EngineSequence
from workers.scripted.runner import ScriptedRunner


def make(exact_rows: bool = True) -> ScriptedRunner:
    return ScriptedRunner(slots=4, context=256, prefill_chunks=(8, 16), exact_rows=exact_rows)


@pytest.mark.parametrize("exact_rows", [True, False], ids=["exact-rows", "chunk-rows"])
@pytest.mark.parametrize("kind", ["raise", "nan"])
def test_the_gate_passes_on_the_scripted_runner(kind: Literal["raise", "nan"], exact_rows: bool) -> None:
    runner = make(exact_rows)
    run_failure_gate(lambda: runner, kind)
    assert runner.violations == []


def evict_all(scheduler: Scheduler, sequence: EngineSequence, *, non_finite: bool) -> None:
    slots: SlotTable = scheduler.slots
    while slots.oldest is not None:
        slots.evict(slots.oldest)


@pytest.mark.parametrize("kind", ["raise", "nan"])
def test_the_gate_finds_a_prefix_that_another_request_cost(kind: Literal["raise", "nan"]) -> None:
    with mock.patch.object(Scheduler, "evict_suspects", evict_all), pytest.raises(AssertionError, match="cached"):
        run_failure_gate(make, kind)
