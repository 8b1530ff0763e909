"""The numbers of connections that fronts share."""

import os

import pytest

from gateway.fronts.connection_counts import ConnectionCounts


def test_each_front_sees_the_numbers_of_the_others() -> None:
    with ConnectionCounts.made(3) as gateway:
        fronts = [ConnectionCounts(os.dup(gateway.descriptor)) for _ in range(3)]  # as processes that inherit it
        for number, front in enumerate(fronts):
            front.note(number, 10**number)
        assert [front.others(number) for number, front in enumerate(fronts)] == [110, 101, 11]
        gateway.note(1, 0)
        assert [front.others(number) for number, front in enumerate(fronts)] == [100, 101, 1]
        for front in fronts:
            os.close(front.descriptor)


def test_there_is_a_number_for_each_front_and_no_more() -> None:
    with ConnectionCounts.made(2) as counts, pytest.raises(IndexError):
        counts.note(2, 1)
