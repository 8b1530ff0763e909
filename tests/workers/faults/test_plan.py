"""Fault plans: which fault, in which call, in which incarnation."""

from workers.faults.plan import Fault, FaultPlan, fail_load, of_incarnation
from workers.process.spec import WorkerSpec


def hits(fault: Fault, calls: int = 8, tokens: tuple[int, ...] = (1, 2)) -> list[int]:
    return [call for call in range(1, calls) if fault.hits(call, tokens)]


def test_a_fault_happens_in_its_calls_alone() -> None:
    assert hits(Fault("raise")) == [1]
    assert hits(Fault("raise", call=3)) == [3]
    assert hits(Fault("raise", call=3, calls=2)) == [3, 4]
    assert hits(Fault("raise", call=5, calls=0)) == [5, 6, 7]


def test_a_fault_of_a_token_follows_the_token() -> None:
    bad = Fault("kill", token=66, calls=0)
    assert hits(bad) == []
    assert hits(bad, tokens=(65, 66)) == list(range(1, 8))


def test_a_fault_of_one_incarnation_is_not_in_others() -> None:
    spec = WorkerSpec("w0", "m", "", faults=(Fault("kill", incarnation=2), Fault("nan")))
    kinds = [[fault.kind for fault in spec.of_incarnation(number).faults] for number in (1, 2, 3)]
    assert kinds == [["nan"], ["kill", "nan"], ["nan"]]
    assert of_incarnation((), 1) == ()


def test_planned_faults_are_carried_out_in_order() -> None:
    done: list[tuple[str, int]] = []
    acts = {kind: lambda fault, call: done.append((fault.kind, call)) for kind in ("slow", "hang", "kill", "stop")}
    plan = FaultPlan([Fault("slow", calls=0), Fault("hang", call=2), Fault("stop", call=2), Fault("no_memory")], acts)
    for call in (1, 2, 3):
        plan.enter(call, ())
    assert done == [("slow", 1), ("slow", 2), ("hang", 2), ("stop", 2), ("slow", 3)]


def test_raise_hits_its_tokens_alone() -> None:
    plan = FaultPlan([Fault("raise", call=4), Fault("raise", call=6, token=66), Fault("nan", call=5)])
    assert [plan.fails(call, (65,)) for call in range(3, 8)] == [False, True, False, False, False]
    assert [plan.fails(call, (65, 66)) for call in range(3, 8)] == [False, True, False, True, False]


def test_nan_hits_its_tokens_alone() -> None:
    plan = FaultPlan([Fault("nan", call=2, calls=0, token=66), Fault("nan", call=5), Fault("kill", call=6)])
    plan.enter(2, (66,))  # it corrupts rows, and has no effect on the process
    assert [plan.not_finite(call, (65, 66)) for call in (1, 2, 3)] == [False, True, True]
    assert [plan.not_finite(call, (65,)) for call in (4, 5, 6)] == [False, True, False]


def test_a_load_fails_only_by_plan() -> None:
    fail_load([Fault("raise"), Fault("kill")])
