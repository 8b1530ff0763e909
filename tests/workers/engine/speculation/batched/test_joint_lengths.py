"""Drafts are as long as they pay, where drafting takes time."""

import pytest

from workers.engine.speculation.batched.draft_costs import DraftCosts
from workers.engine.speculation.batched.joint_lengths import Offer, joint_lengths
from workers.engine.speculation.batched.preparation import Lacking, worth_preparing
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
    costs.record_draft(2, 2, 900.0)
    costs.record_draft(2, 2, 6.0)
    assert costs.step(2, target_s=4.0) == 3.0, "of few the least: after an outlier nothing more would be drafted"
    for seconds in (2.0, 10.0):
        costs.record_draft(2, 2, seconds)
    assert costs.step(2, target_s=4.0) == 4.0
    assert costs.step(1, target_s=4.0) == 4.0
    assert costs.step(4, target_s=4.0) == pytest.approx(4.8)
    assert costs.prepared(5) is None
    for seconds in (900.0, 20.0):
        costs.record_prepared(10, seconds)
    assert costs.prepared(5) == 10.0


def test_each_sequence_gets_a_token_before_one_gets_a_second_draft_step() -> None:
    assert joint_lengths(flat(8), lambda _: 0.2, [Offer(4, 1.0, 1.0, batched=True)] * 4, 8).lengths == [1] * 4


def test_prompts_are_computed_where_drafts_save_more_than_that_takes() -> None:
    assert worth_preparing([Lacking(100, 64, 0.02)], 0.01, 100) == [0]
    assert worth_preparing([Lacking(100, 64, 0.015)], 0.01, 100) == [], "it saves 0.96 of a second, and takes 1"
    assert worth_preparing([Lacking(100, 64, 0.0), Lacking(100, 64, 0.001)], 0.0, 1) == [1], "no cost is known"


def test_prompts_that_would_be_computed_when_the_answer_has_ended_are_left_out() -> None:
    assert worth_preparing([Lacking(40, 5, 0.2), Lacking(20, 5, 0.2)], 0.01, 10) == [1], "the shorter one is first"
    assert worth_preparing([Lacking(20, 5, 0.2), Lacking(20, 60, 0.2)], 0.01, 10) == [0, 1]
