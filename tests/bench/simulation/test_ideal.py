"""The ideal wait: that of one queue before all slots."""

import pytest

from bench.simulation.ideal import ideal_waits


def test_nobody_waits_while_a_slot_is_free() -> None:
    assert ideal_waits([(0.0, 9.0), (1.0, 9.0), (2.0, 1.0)], slots=3) == [0.0, 0.0, 0.0]


def test_the_first_slot_that_becomes_free_is_taken() -> None:
    assert ideal_waits([(0.0, 4.0), (0.0, 2.0), (1.0, 5.0), (1.0, 1.0)], slots=2) == [0.0, 0.0, 1.0, 3.0]


def test_there_must_be_a_slot() -> None:
    with pytest.raises(ValueError, match="slots: 0"):
        ideal_waits([], slots=0)
