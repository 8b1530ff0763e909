"""Drafts are as long as they pay, where drafting takes time."""

import pytest

from workers.engine.speculation.batched.draft_costs import DraftCosts
from workers.engine.speculation.batched.joint_lengths import Offer, joint_lengths
from workers.engine.speculation.step_costs import StepCosts


def flat(rows: int, seconds: float = 1.0) -> StepCosts:
    """Steps of up to so many rows, all of which take the same time."""
    costs = StepCosts()
    for count in range(1, rows + 1):
        for _ in range(3):
            costs.record(count, seconds)
    return costs


def test_nothing_is_drafted_before_a_step_is_measured() -> None:
    assert joint_lengths(StepCosts(), lambda _: 0.1, [Offer(4, 1.0, 1.0, batched=True)], 8).lengths == [0]


@pytest.mark.parametrize(
    ("rate", "draft_step", "length"),
    [(1.0, 0.0, 7), (1.0, 0.1, 7), (0.5, 0.1, 2), (0.1, 0.0, 7), (0.1, 0.1, 0), (0.9, 1.0, 0), (0.0, 0.01, 0)],
)
def test_tokens_are_drafted_as_long_as_they_gain_more_than_they_cost(
    rate: float, draft_step: float, length: int
) -> None:
    chosen = joint_lengths(flat(8), lambda _: draft_step, [Offer(8, rate, rate, batched=True)], 8)
    assert chosen.lengths == [length]
    assert chosen.speed > 1.05 if length else chosen.speed == 1.0


def test_sequences_share_the_steps_of_a_draft() -> None:
    """A draft step for two costs no more than for one, so that both get tokens where one alone would gain nothing."""
    assert joint_lengths(flat(8), lambda _: 0.6, [Offer(1, 0.6, 0.6, batched=True)], 8).lengths == [0]
    two = [Offer(1, 0.95, 0.95, batched=True), Offer(1, 0.95, 0.95, batched=True)]
    assert joint_lengths(flat(8), lambda _: 0.6, two, 8).lengths == [1, 1]


def test_tokens_that_are_there_already_cost_no_draft_step() -> None:
    offers = [Offer(3, 0.8, 0.8), Offer(3, 0.8, 0.8, batched=True)]
    assert joint_lengths(flat(8), lambda _: 5.0, offers, 8).lengths == [3, 0]
    assert joint_lengths(flat(8), lambda _: 0.0, offers, 8).lengths == [3, 3]
    assert sum(joint_lengths(flat(8), lambda _: 0.0, offers, 5).lengths) == 3


def test_costs_of_drafts_are_medians_by_their_sequences() -> None:
    costs = DraftCosts(0.25)
    assert costs.step(2, target_s=4.0) == 1.0
    for seconds in (6.0, 2.0, 900.0):
        costs.record_draft(2, 2, seconds)
    assert costs.step(2, target_s=4.0) == 3.0
    assert costs.step(1, target_s=4.0) == 3.0
    assert costs.step(4, target_s=4.0) == pytest.approx(3.6)
    assert costs.prepared(5) is None
    costs.record_prepared(10, 20.0)
    assert costs.prepared(5) == 10.0


def test_each_sequence_gets_a_token_before_one_gets_a_second_draft_step() -> None:
    assert joint_lengths(flat(8), lambda _: 0.2, [Offer(4, 1.0, 1.0, batched=True)] * 4, 8).lengths == [1] * 4
