"""The number of workers that a load needs, on a clock of the test."""

import pytest

from cli.scaling.replica_target import FleetLoad, ReplicaTarget, ScaleRange

BOUNDS = ScaleRange(1, 8, target_queue=4.0, down_s=60.0)
CALM = FleetLoad(waiting=0, active=0, slots=8)


def test_the_start_is_within_the_bounds() -> None:
    assert [ReplicaTarget(BOUNDS, number).wanted for number in (0, 1, 8, 9)] == [1, 1, 8, 8]


@pytest.mark.parametrize(("waiting", "wanted"), [(8, 2), (9, 3), (15, 4), (100, 4)])
def test_a_queue_adds_workers_at_once_and_at_most_doubles_them(waiting: int, wanted: int) -> None:
    target = ReplicaTarget(BOUNDS, 2)
    assert target.update(FleetLoad(waiting, 16, 16), ready=2, now=0.0) == wanted


def test_it_waits_for_the_workers_that_are_to_come() -> None:
    target = ReplicaTarget(BOUNDS, 1)
    long = FleetLoad(100, 8, 8)
    assert target.update(long, ready=1, now=0.0) == 2
    assert target.update(long, ready=1, now=1.0) == 2
    assert [target.update(long, ready=target.wanted, now=2.0 + each) for each in range(4)] == [4, 8, 8, 8]


def test_it_shrinks_by_one_after_the_time_in_which_the_load_fits() -> None:
    target = ReplicaTarget(BOUNDS, 3)
    seen = [target.update(CALM, ready=3, now=float(now)) for now in range(0, 183)]
    assert [seen.index(number) for number in (3, 2, 1)] == [0, 60, 121]
    assert seen[-1] == 1


@pytest.mark.parametrize(
    "busy", [FleetLoad(1, 0, 16), FleetLoad(0, 6, 16)], ids=["one waits", "it does not fit into one"]
)
def test_a_load_that_does_not_fit_begins_the_time_anew(busy: FleetLoad) -> None:
    """Two workers of 8 slots: one of them holds 70 % of 8 slots, which is 5."""
    fits = FleetLoad(0, 5, 16)
    target = ReplicaTarget(BOUNDS, 2)
    for now in range(0, 60):
        target.update(fits, ready=2, now=float(now))
    assert target.update(busy, ready=2, now=60.0) == 2
    assert target.update(fits, ready=2, now=61.0) == 2
    assert target.update(fits, ready=2, now=120.9) == 2
    assert target.update(fits, ready=2, now=121.0) == 1


def test_a_steady_load_leaves_the_number_as_it_is() -> None:
    """After it has grown for a queue, the same load does not make it shrink and grow in turn."""
    target = ReplicaTarget(BOUNDS, 1)
    target.update(FleetLoad(5, 8, 8), ready=1, now=0.0)
    seen = {target.update(FleetLoad(0, 13, 16), ready=2, now=float(now)) for now in range(1, 1000)}
    assert seen == {2}


def test_a_fixed_number_stays() -> None:
    target = ReplicaTarget(ScaleRange(2, 2), 2)
    assert target.update(FleetLoad(1000, 16, 16), 2, 0.0) == 2
    assert {target.update(CALM, 2, float(now)) for now in range(0, 1000, 10)} == {2}
    assert ReplicaTarget(ScaleRange(0, 0), 3).update(CALM, 0, 0.0) == 0
