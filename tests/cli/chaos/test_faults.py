"""The faults by name, and when planned ones occur."""

import random
from typing import get_args

import pytest

from cli.chaos.faults import FIRST_MESSAGE, LOAD_FAULTS, PLANNED, SIGNALS, SLOW_CALLS, SLOW_S, planned_fault
from workers.faults.plan import LINK_FAULTS, CallFault, LoadFault


def test_every_fault_of_a_plan_has_a_name_except_refuse_load() -> None:
    kinds = {*get_args(CallFault), *get_args(LoadFault), *LINK_FAULTS}
    assert set(PLANNED.values()) == kinds - {"refuse_load"}
    assert not PLANNED.keys() & SIGNALS.keys()


@pytest.mark.parametrize("name", PLANNED)
def test_a_planned_fault_occurs_early_in_an_incarnation(name: str) -> None:
    rng = random.Random(1)
    faults = [planned_fault(name, rng, 10) for _ in range(200)]
    assert {fault.kind for fault in faults} == {PLANNED[name]}
    calls = {fault.call for fault in faults}
    first = 1 + FIRST_MESSAGE * (PLANNED[name] in LINK_FAULTS)
    assert calls == ({1} if name in LOAD_FAULTS else set(range(first, first + 10)))
    slow = name in ("slow", "slow_link")
    assert {(fault.calls, fault.seconds) for fault in faults} == {(SLOW_CALLS, SLOW_S) if slow else (1, 0.0)}
    assert planned_fault(name, rng, 0) == planned_fault(name, rng, 1), "there is always a first call"
