"""Lengths of drafts follow from costs and rates."""

import pytest

from workers.engine.speculation.draft_lengths import LEAST_STAKE, draft_lengths
from workers.engine.speculation.step_costs import _STEPS, BEND, ENOUGH, GROWTH, LEAST_GROWTH, StepCosts


def costs(**seconds: float) -> StepCosts:
    """Measured costs: `costs(r1=1.0)` of one row."""
    made = StepCosts()
    for rows, each in seconds.items():
        for _ in range(ENOUGH):
            made.record(int(rows[1:]), each)
    return made


def test_nothing_is_verified_before_a_step_is_measured() -> None:
    assert draft_lengths(StepCosts(), [(5, 1.0, 1.0)], 8) == [0]
    assert draft_lengths(costs(r2=1.0), [(5, 1.0, 1.0)], 8) == [0], "of two sequences, not of one"


def test_all_of_a_likely_draft_is_verified_and_nothing_of_an_unlikely_one() -> None:
    assert draft_lengths(costs(r1=1.0), [(7, 0.99, 0.99)], 8) == [7]
    assert draft_lengths(costs(r1=1.0), [(7, 0.1, 0.1)], 8) == [0]


def test_a_draft_ends_where_the_next_token_does_not_pay() -> None:
    measured = costs(r1=1.0, r2=1.1, r3=1.2, r4=1.9)
    assert draft_lengths(measured, [(7, 0.6, 0.6)], 8) == [2]


def test_a_draft_whose_first_token_is_unlikely_is_verified_if_many_follow_it() -> None:
    measured = costs(r1=1.0, r2=1.4, r8=1.5)
    assert draft_lengths(measured, [(7, 0.2, 0.98)], 8) == [7]
    assert draft_lengths(measured, [(7, 0.2, 0.5)], 8) == [0]
    assert draft_lengths(measured, [(7, 0.05, 0.98)], 8) == [0]


def test_a_jump_of_costs_is_crossed_if_what_is_beyond_pays() -> None:
    measured = costs(r1=1.0, r2=1.9, r8=2.0)
    assert draft_lengths(measured, [(7, 0.95, 0.95)], 8) == [7]


def test_the_likeliest_tokens_of_all_drafts_have_the_rows() -> None:
    measured = costs(r3=1.0, r8=1.1)
    assert draft_lengths(measured, [(4, 0.9, 0.9), (4, 0.2, 0.2), (2, 0.9, 0.9)], 7) == [2, 0, 2]
    assert draft_lengths(measured, [(4, 0.9, 0.9), (0, 0.0, 0.0), (4, 0.9, 0.9)], 3) == [0, 0, 0], "no row is left"


@pytest.mark.parametrize(("stake", "length"), [(-1.0, LEAST_STAKE), (0.24, 2), (0.31, 3), (0.71, 7)])
def test_no_more_is_risked_than_the_stake(stake: float, length: int) -> None:
    """Up to a few tokens, which a drafter needs to show that it is right."""
    measured = costs(r1=1.0, r8=1.7)
    assert draft_lengths(measured, [(7, 0.9, 0.99)], 8, stake) == [length]
    two = costs(r2=1.0, r16=2.4)
    assert draft_lengths(two, [(7, 0.9, 0.99)] * 2, 16, max(stake, 0.21)) == [length] * 2, "for each of them"


def test_a_gain_within_the_error_of_measurements_is_none() -> None:
    assert draft_lengths(costs(r1=1.0, r2=1.0), [(1, 0.04, 0.04)], 2) == [0]
    assert draft_lengths(costs(r1=1.0, r2=1.0), [(1, 0.06, 0.06)], 2) == [1]


def test_costs_between_measured_ones_are_interpolated_and_those_beyond_assumed() -> None:
    measured = costs(r2=1.0, r4=2.0)
    assert (measured.of(3), measured.of(4)) == (1.5, 2.0)
    assert measured.of(6) == pytest.approx(2.0 * (1 + 2 * GROWTH))


def test_rows_beyond_the_measured_ones_cost_more_than_these_up_to_a_bound() -> None:
    flat, even, steep = costs(r1=1.0, r5=1.0), costs(r1=1.0, r5=1.1), costs(r1=1.0, r5=2.0)
    assert flat.of(7) == pytest.approx(1.0 + 2 * LEAST_GROWTH)
    assert even.of(7) == pytest.approx(1.1 + 2 * BEND * 0.025)
    assert steep.of(7) == pytest.approx(2.0 * (1 + 2 * GROWTH))


def test_more_rows_never_cost_less() -> None:
    assert costs(r1=2.0, r2=1.0).of(2) == 2.0


def test_a_single_slow_step_does_not_count_yet() -> None:
    measured = costs(r1=1.0)
    for _ in range(ENOUGH - 1):
        measured.record(2, 50.0)
        assert measured.of(2) == pytest.approx(1.0 + GROWTH)
    measured.record(2, 50.0)
    assert measured.of(2) == 50.0


def test_old_measurements_are_dropped() -> None:
    measured = costs(r1=1.0, r2=9.0)
    for _ in range(_STEPS + 8):
        measured.record(1, 2.0)
    assert measured.measured(2) is None
    assert measured.measured(1) == 2.0
