"""Losses of drafts are bounded by a part of the time, and by what drafts have gained, up to a bound."""

import random

from workers.engine.speculation.loss_budget import CREDIT_STEPS, GAINED_STEPS, LOSS, MAX_REST, LossBudget


def test_losses_are_paid_by_a_part_of_the_steps_and_by_gains() -> None:
    budget = LossBudget()
    budget.pay((CREDIT_STEPS + 9.5) * LOSS)
    assert budget.step(1.0) == 9, "the step itself has paid a part"
    assert budget.step(1.0, steps=8) == 1
    assert budget.step(1.0) == 0
    budget.step(1.0, gained=100.0)
    budget.pay(GAINED_STEPS)
    assert budget.step(0.0) == 0
    budget.pay(0.001)
    assert budget.step(0.0) == 1, "no more is saved of gains"


def test_no_rest_is_longer_than_its_bound() -> None:
    budget = LossBudget()
    budget.pay(LOSS * (CREDIT_STEPS + 1 + MAX_REST))
    assert budget.step(1.0) == MAX_REST
    assert budget.step(1.0, steps=MAX_REST) == 0
    budget.pay(LOSS * (1 + 2 * MAX_REST))
    assert budget.step(1.0) == MAX_REST
    assert budget.step(2.0, steps=MAX_REST) == 0, "they took longer"


def test_without_gains_no_more_is_saved_than_the_credit() -> None:
    budget = LossBudget()
    for _ in range(10 * CREDIT_STEPS):
        budget.step(1.0)
    assert round(budget.seconds / LOSS) == CREDIT_STEPS
    budget.step(1.0, gained=1.0)
    budget.step(1.0)
    assert budget.seconds == CREDIT_STEPS * LOSS + 1.0, "time does not take from gains, and adds nothing to them"


def test_whatever_is_gained_and_lost_the_bound_on_the_sum_holds() -> None:
    """Drafts that gain or lose by chance, each time that the budget allows it."""
    for seed in range(20):
        randomness, budget = random.Random(seed), LossBudget()
        right, sum_s, worst, step = randomness.random(), 0.0, 0.0, 0
        while step < 3000:
            lost = randomness.choice((0.1, 0.4, 1.0))
            gained = randomness.choice((0.5, 1.0, 4.0)) if randomness.random() < right * (step < 1500) else -lost
            sum_s, step = sum_s + gained, step + 1
            rest = budget.step(1.0, gained)
            worst = min(worst, sum_s + LOSS * step + CREDIT_STEPS * LOSS)
            while rest:
                step += rest
                rest = budget.step(1.0, steps=rest)
        assert worst >= -1.0, "one wrong draft beyond the budget"
