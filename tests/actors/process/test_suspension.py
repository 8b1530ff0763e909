"""What is stopped for good is told from what is stopped for moments."""

from actors.process.suspension import Suspension


def test_it_is_told_at_its_limit_and_not_before() -> None:
    one = Suspension(2.0)
    assert not one.look(False, 9.0, 10.0)
    assert not one.look(True, 9.0, 11.0)
    assert not one.look(True, 9.0, 12.99)
    assert one.look(True, 9.0, 13.0)


def test_who_goes_on_begins_anew() -> None:
    one = Suspension(2.0)
    assert not one.look(True, 0.0, 1.0)
    assert not one.look(False, 0.0, 2.0)
    assert not one.look(True, 0.0, 3.0)
    assert not one.look(True, 0.0, 4.9)
    assert one.look(True, 0.0, 5.0)


def test_who_is_heard_of_between_two_looks_was_not_stopped_for_good() -> None:
    one = Suspension(2.0)
    assert not one.look(True, 0.0, 1.0)
    assert not one.look(True, 1.5, 3.0)
    assert not one.look(True, 1.5, 4.9)
    assert one.look(True, 1.5, 5.0)
