"""Positions in the ids of events: what is written is read, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.streaming.moving.event_position import EventPosition, SequencePosition, parse_position

COUNTS = st.integers(0, 999_999_999)
SEQUENCES = st.lists(st.builds(SequencePosition, COUNTS, COUNTS, st.integers(0, 0xFFFFFFFF)), max_size=16).map(tuple)
PARTS = st.tuples(st.integers(0, 16), st.integers(1, 9)) | st.just((0, 0))


@given(st.builds(EventPosition, st.integers(0, 10**15 - 1), SEQUENCES, PARTS, st.just(False)))
def test_a_position_is_read_as_it_was_written(position: EventPosition) -> None:
    assert parse_position(position.written()) == position


@given(st.builds(EventPosition, COUNTS, SEQUENCES, st.just((0, 0)), st.just(True)))
def test_the_last_one_is_marked(position: EventPosition) -> None:
    assert position.written().endswith("_e")
    assert parse_position(position.written()) == position


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "-1",
        "1-",
        "1.2.3",
        "1.2.3.0000000",
        "1.2.3.0000000G",
        "1_",
        "1_2",
        "1_2.",
        "1_e2",
        "1" * 16,
        "1.1.1.00000000_",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    assert parse_position(text) is None
