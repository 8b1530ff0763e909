"""The percentage of right `Retry-After` values, as the benchmark counts it."""

import pytest

from bench.gateway_load.fairness import NEAR_S, Connections


@pytest.mark.parametrize(("advised", "right"), [(4, 0.0), (5, 100.0), (20, 100.0), (21, 0.0)])
def test_a_right_one_is_within_a_factor_of_two_of_what_answers_took(advised: int, right: float) -> None:
    mine = Connections("one", 1, took=[(100.0, 9.0), (100.5, 11.0), (100.0 - NEAR_S, 1.0)], advised=[(100.0, advised)])
    assert mine.right() == right


def test_a_refusal_without_an_answer_near_it_does_not_count() -> None:
    mine = Connections("one", 1, took=[(100.0, 10.0)], advised=[(100.0, 10), (100.0 + NEAR_S, 500)])
    assert mine.right() == 100.0
    assert Connections("one", 1, advised=[(100.0, 1)]).right() == 100.0
