"""Rows that windows have lost, and where a slot can be continued."""

import pytest

from workers.engine.states.lost_rows import LostRows


@pytest.mark.parametrize(("length", "usable"), [(100, True), (58, False), (59, True), (0, False)])
def test_a_slot_is_continued_where_no_row_within_reach_is_lost(length: int, usable: bool) -> None:
    rows = LostRows(2, kept=50, reach=9)
    assert rows.lost(0, 100) == 50
    assert rows.usable(0, 100, length) == usable
    assert rows.keeps(100, length) == usable


def test_nothing_is_lost_of_few_rows_or_without_windows() -> None:
    assert LostRows(1, kept=50, reach=9).usable(0, 50, 1)
    assert LostRows(1, kept=0, reach=0).usable(0, 1000, 1)


def test_what_is_lost_stays_lost_in_copies_until_a_slot_is_empty() -> None:
    rows = LostRows(3, kept=50, reach=9)
    rows.began(1, 0, 100, 70)
    assert [rows.lost(slot, 70) for slot in range(3)] == [20, 50, 20]
    rows.wrote(1, 130)
    rows.began(1, 1, 90, 90)
    assert not rows.usable(1, 90, 88)
    assert rows.usable(1, 90, 89)
    rows.began(1, 1, 90, 0)
    assert rows.usable(1, 40, 5)


def test_a_slot_without_the_rows_of_windows_is_continued_by_a_snapshot() -> None:
    rows = LostRows(2, kept=50, reach=9)
    rows.began(1, 0, 100, 58)  # of which windows have lost the last ones
    assert not rows.usable(1, 58, 58)
    rows.restored(1, 58)
    assert [rows.usable(1, 60, length) for length in (57, 58)] == [False, True]
    rows.rows_written(0, 30)
    assert not rows.usable(0, 30, 30)
    rows.restored(0, 9)
    assert rows.usable(0, 9, 1)
