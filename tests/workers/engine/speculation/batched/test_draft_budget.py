"""The time that a drafter may lose."""

from workers.engine.speculation.batched.draft_budget import (
    CREDIT_STEPS,
    DEBT_STEPS,
    LOSS,
    PAID_STEPS,
    PROBE_DEBT_STEPS,
    PROBE_STEPS,
    DraftBudget,
)


def test_a_drafter_that_is_never_right_loses_its_part_of_the_time_and_a_debt_once() -> None:
    budget, lost, steps = DraftBudget(), 0.0, 20_000
    for _ in range(steps):
        budget.step(1.0)
        if budget.allows_drafts:
            budget.pay(0.5)
            lost += 0.5
    assert DEBT_STEPS + LOSS * steps - 1 <= lost <= DEBT_STEPS + LOSS * steps + 1


def test_gains_are_saved_up_to_a_bound() -> None:
    budget, spent = DraftBudget(), 0.0
    for _ in range(1000):
        budget.step(1.0, gained=10.0)
    while budget.allows_drafts:
        budget.pay(1.0)
        spent += 1.0
    assert spent == CREDIT_STEPS + DEBT_STEPS


def test_a_suspended_process_is_not_charged_for() -> None:
    budget = DraftBudget()
    budget.step(1.0)
    budget.pay(3600.0)
    assert budget.allows_drafts
    for _ in range(DEBT_STEPS // PAID_STEPS):
        assert budget.allows_drafts
        budget.pay(3600.0)
    assert not budget.allows_drafts


def test_probes_are_rare_and_wait_for_losses_to_be_made_up_for() -> None:
    budget = DraftBudget()
    probes = []
    for step in range(10 * PROBE_STEPS):
        budget.step(1.0)
        if budget.allows_probe:
            budget.probed()
            probes.append(step)
    assert probes == [PROBE_STEPS * number for number in range(10)]
    for _ in range(PROBE_STEPS):
        budget.step(1.0)
    spent = 0
    while budget.allows_probe:
        budget.pay(1.0)
        spent += 1
    assert PROBE_DEBT_STEPS <= spent <= PROBE_DEBT_STEPS + LOSS * 11 * PROBE_STEPS + 1
    assert budget.allows_drafts, "one that is expected to gain may spend more"


def test_nothing_is_spent_before_a_step_is_measured() -> None:
    budget = DraftBudget()
    assert not budget.allows_drafts
    budget.step(1.0)
    assert budget.allows_drafts
