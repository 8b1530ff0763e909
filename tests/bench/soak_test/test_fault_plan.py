"""The fault plan: it follows from its seed alone."""

import itertools
import statistics

import msgspec
import pytest

from bench.soak_test.fault_plan import OUTSIDE, faults_of_life, kinds, may_fail_to_start, outside_faults
from cli.chaos.faults import FIRST_MESSAGE, LOAD_FAULTS
from workers.faults.plan import CALL_FAULTS, LINK_FAULTS, Fault

LIVES = [faults_of_life(7, f"w{worker}", life, calls=200) for worker in range(4) for life in range(1, 101)]


def test_a_seed_gives_the_same_plan() -> None:
    first, second = (list(itertools.islice(outside_faults(3, 2.0), 20)) for _ in range(2))
    assert first == second
    assert list(itertools.islice(outside_faults(4, 2.0), 20)) != first
    assert faults_of_life(7, "w1", 2, calls=200) == faults_of_life(7, "w1", 2, calls=200)
    assert len({faults_of_life(7, "w1", life, calls=200) for life in range(2, 50)}) > 30


def test_blows_fall_as_often_as_asked_and_never_at_once() -> None:
    faults = list(itertools.islice(outside_faults(1, 2.0), 2000))
    assert min(fault.after_s for fault in faults) >= 0.2
    assert statistics.mean(fault.after_s for fault in faults) == pytest.approx(2.0, rel=0.1)
    assert {fault.kind for fault in faults} == set(OUTSIDE)


def test_the_first_life_is_undisturbed() -> None:
    assert all(faults_of_life(seed, "w0", 1, calls=10) == () for seed in range(50))


def test_every_second_life_starts_undisturbed() -> None:
    """No worker may fail five starts in a row: it would be given up, and rightly so."""
    first_messages = {fault.call for life in LIVES[1::2] for fault in life if fault.kind in LINK_FAULTS}
    assert min(first_messages) > FIRST_MESSAGE
    assert not set(kinds(LIVES[1::2])) & set(LOAD_FAULTS)
    assert set(kinds(LIVES[::2])) >= set(LOAD_FAULTS)
    assert [may_fail_to_start(life) for life in (1, 2, 3, 4)] == [True, False, True, False]


def test_every_kind_of_fault_comes_but_the_one_that_rightly_ends_a_worker() -> None:
    assert set(kinds(LIVES)) == {*CALL_FAULTS, *LOAD_FAULTS, *LINK_FAULTS}
    assert "refuse_load" not in LOAD_FAULTS


def test_a_workers_specification_can_carry_it() -> None:
    for faults in LIVES:
        assert msgspec.json.decode(msgspec.json.encode(faults), type=tuple[Fault, ...]) == faults
