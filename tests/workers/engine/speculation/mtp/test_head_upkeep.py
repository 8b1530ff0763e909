"""When a head for multi-token prediction rests, and when it tries again."""

from collections.abc import Sequence

import pytest

from workers.engine.runner import DecodeRow
from workers.engine.speculation.mtp.head_upkeep import (
    DEBT_STEPS,
    FIRST_REST,
    LONGEST_REST,
    LOSS,
    LOST_STEPS,
    PROMPT_DEBT_STEPS,
    TRIAL_STEPS,
    HeadUpkeep,
)


class Head:
    """Takes a part of each step while it follows anything. Implements `DraftHead`."""

    def __init__(self, cost: float) -> None:
        self.followed: list[int | None] = []
        self.followed_s = self.prompts_s = 0.0
        self.cost = cost

    def follow(self, slots: int | None) -> None:
        self.followed.append(slots)

    def ready(self, slot: int, row: int) -> bool:
        raise NotImplementedError

    def draft(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        raise NotImplementedError

    def step(self) -> float:
        """Follow a step of a second, if anything is followed, and return what that took."""
        spent = 0.0 if not self.followed or self.followed[-1] == 0 else self.cost
        self.followed_s += spent
        return spent


@pytest.mark.parametrize("cost", [0.01, 0.1, 0.5])
def test_a_head_that_is_never_right_costs_next_to_nothing_in_the_long_run(cost: float) -> None:
    head, lost, steps = Head(cost), 0.0, 40_000
    upkeep = HeadUpkeep(head)
    for _ in range(steps):
        spent = head.step()
        wrong = 0.2 if spent else 0.0  # its drafts
        lost += spent + wrong
        upkeep.step(1.0, -wrong)
    assert lost <= DEBT_STEPS + 1.5 * TRIAL_STEPS * (7 + steps / LONGEST_REST)
    assert lost < LOSS * steps
    assert head.followed.count(1) == 7, "the rests double"
    assert set(head.followed[1::2]) == {0}


def test_a_head_that_gains_more_than_it_costs_goes_on_and_does_not_save_much() -> None:
    head = Head(0.1)
    upkeep = HeadUpkeep(head)
    for _ in range(5000):
        head.step()
        upkeep.step(1.0, 0.3)
    assert head.followed == [None]
    steps = 0
    while not upkeep.rests:
        head.step()
        upkeep.step(1.0, 0.0)
        steps += 1
    assert 2 * DEBT_STEPS / 0.1 <= steps <= 2 * DEBT_STEPS / 0.1 + 2


def test_after_a_trial_that_gains_all_is_followed_again() -> None:
    head = Head(0.1)
    upkeep = HeadUpkeep(head)
    while not upkeep.rests:
        head.step()
        assert not upkeep.step(1.0, 0.0)
    rested = 1
    while not upkeep.step(1.0, 0.0):
        assert upkeep.rests
        rested += 1
    assert rested == FIRST_REST
    assert head.followed == [None, 0, 1]
    while head.followed[-1] == 1:
        head.step()
        assert not upkeep.step(1.0, 0.6)
    assert head.followed == [None, 0, 1, None]


def test_prompts_may_cost_more_before_their_answers_gain() -> None:
    head = Head(0.0)
    upkeep = HeadUpkeep(head)
    upkeep.step(1.0, 0.0)
    head.prompts_s += PROMPT_DEBT_STEPS - 1
    upkeep.step(1.0, 0.0)
    assert head.followed == [None]
    head.prompts_s += 2
    upkeep.step(1.0, 0.0)
    assert head.followed == [None, 0]
    while not upkeep.step(1.0, 0.0):
        pass
    head.prompts_s += PROMPT_DEBT_STEPS + 1
    upkeep.step(1.0, 0.0)
    rested = 0
    while not upkeep.step(1.0, 0.0):
        rested += 1
    assert rested + 1 == (PROMPT_DEBT_STEPS + 1) / LOSS, "a trial that took longer is paid for by a longer rest"


def test_few_steps_that_were_interrupted_end_nothing() -> None:
    head = Head(0.0)
    upkeep = HeadUpkeep(head)
    for _ in range(int(DEBT_STEPS / LOST_STEPS)):
        upkeep.step(1.0, -100.0)
        assert head.followed == [None]
    upkeep.step(1.0, -100.0)
    assert head.followed == [None, 0]


def test_a_step_of_unknown_cost_counts_nothing() -> None:
    head = Head(9.0)
    upkeep = HeadUpkeep(head)
    for _ in range(10):
        head.step()
        upkeep.step(0.0, 0.0)
    assert head.followed == [None]
