"""The faults that can be asked for, and what a worker is told of those from within."""

import random
from typing import get_args

import pytest

from cli.chaos.faults import FIRST_MESSAGE, LOADS, OUTSIDE, SLOW_CALLS, SLOW_S, WITHIN, within
from cli.commands.chaos import chosen
from cli.config.errors import CommandFailed
from workers.faults.plan import LINK_FAULTS, CallFault, LoadFault


def test_every_fault_of_a_plan_can_be_asked_for_but_the_one_that_rightly_ends_a_worker() -> None:
    there = {*get_args(CallFault), *get_args(LoadFault), *LINK_FAULTS}
    assert set(WITHIN.values()) == there - {"refuse_load"}
    assert not WITHIN.keys() & OUTSIDE.keys()


@pytest.mark.parametrize("name", WITHIN)
def test_it_comes_early_in_a_life(name: str) -> None:
    draw = random.Random(1)
    faults = [within(name, draw, 10) for _ in range(200)]
    assert {fault.kind for fault in faults} == {WITHIN[name]}
    calls = {fault.call for fault in faults}
    first = 1 + FIRST_MESSAGE * (WITHIN[name] in LINK_FAULTS)
    assert calls == ({1} if name in LOADS else set(range(first, first + 10)))
    slow = name in ("slow", "slow_link")
    assert {(fault.calls, fault.seconds) for fault in faults} == {(SLOW_CALLS, SLOW_S) if slow else (1, 0.0)}
    assert within(name, draw, 0) == within(name, draw, 1), "there is always a first call"


def test_a_worker_of_somebody_else_is_not_told() -> None:
    assert chosen("kill,nan", own=True) == ["kill", "nan"]
    with pytest.raises(CommandFailed, match="'nan' comes from within"):
        chosen("kill,nan")


def test_all_is_all_that_there_are() -> None:
    assert chosen("all") == list(OUTSIDE)
    assert chosen(" all ", own=True) == [*OUTSIDE, *WITHIN]
    with pytest.raises(CommandFailed, match="there is no 'all'"):
        chosen("kill,all")
