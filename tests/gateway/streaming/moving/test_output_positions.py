"""The parts of a delta that a client has and that are new to it, wherever a delta can be divided."""

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.generation.delta import OutputDelta, ReasoningDelta, StopReason, TextDelta, ToolCallDelta
from gateway.streaming.moving.event_position import EventPosition, SequencePosition
from gateway.streaming.moving.output_positions import OutputDiffers, OutputPositions

CALL = ToolCallDelta(0, 1, "call_1", "add", '{"a":1}', (1, 2, 3))


def at(units: int, tokens: int, text: str) -> OutputPositions:
    place = SequencePosition(units, tokens, crc32(text.encode()))
    return OutputPositions(1, EventPosition(1, (place,)))


@given(st.text(max_size=20), st.integers(0, 20), st.integers(0, 5), st.sampled_from([TextDelta, ReasoningDelta]))
def test_text_is_divided_anywhere(text: str, units: int, tokens: int, kind: type[TextDelta]) -> None:
    units, ids = min(units, len(text)), tuple(range(5))
    positions = at(units, tokens, text[:units])
    known, new = positions.split(kind(0, text, ids))
    assert [each.text if isinstance(each, kind) else "" for each in (known, new)] == [text[:units], text[units:]]
    assert [() if each is None else each.tokens for each in (known, new)] == [ids[:tokens], ids[tokens:]]
    assert not positions.catches_up


def test_a_call_is_divided_within_its_arguments_and_has_its_id_once() -> None:
    known, new = at(5, 2, 'add{"').split(CALL)
    assert known == ToolCallDelta(0, 1, "call_1", "add", '{"', (1, 2))
    assert new == ToolCallDelta(0, 1, "", "", 'a":1}', (3,))
    assert at(0, 2, "").split(CALL) == (TextDelta(0, "", (1, 2)), ToolCallDelta(0, 1, "call_1", "add", '{"a":1}', (3,)))
    assert at(0, 0, "").split(CALL) == (None, CALL)
    assert at(10, 3, 'add{"a":1}').split(CALL) == (CALL, None)
    with pytest.raises(OutputDiffers):
        at(2, 0, "ad").split(CALL)


def test_the_end_of_a_sequence_is_a_part_of_its_own() -> None:
    whole = TextDelta(0, "ab", (1,), stop=StopReason.END, stopped_by="c")
    text, end = OutputPositions.parts([whole])
    assert (text, end) == (TextDelta(0, "ab", (1,)), TextDelta(0, "", stop=StopReason.END, stopped_by="c"))
    assert at(2, 1, "ab").split(text) == (text, None)
    assert at(3, 1, "ab").split(text) == (text, None)
    after = at(2, 1, "ab")
    after.split(text)
    assert after.split(end) == (None, end)
    done = at(3, 1, "ab")
    done.split(text)
    assert done.split(end) == (end, None)
    assert not done.catches_up


@pytest.mark.parametrize(
    ("positions", "given"),
    [
        (at(2, 0, "ab"), [TextDelta(0, "ax")]),
        (at(3, 0, "abc"), [TextDelta(0, "ab"), TextDelta(0, "", stop=StopReason.END)]),
        (at(1, 2, "a"), [TextDelta(0, "a", (1,)), TextDelta(0, "", stop=StopReason.END)]),
        (at(4, 0, "ab"), [TextDelta(0, "ab"), TextDelta(0, "", stop=StopReason.END)]),
    ],
    ids=["other text", "ends before", "fewer tokens", "more than the end"],
)
def test_other_output_is_found(positions: OutputPositions, given: list[OutputDelta]) -> None:
    *first, last = given
    for each in first:
        positions.split(each)
    with pytest.raises(OutputDiffers):
        positions.split(last)


def test_output_that_never_reaches_the_position_is_found_at_the_end() -> None:
    positions = at(3, 0, "abc")
    positions.split(TextDelta(0, "ab"))
    with pytest.raises(OutputDiffers):
        positions.check_all()


def test_events_before_an_output_announce_it() -> None:
    positions = OutputPositions(2)
    assert positions.marks(TextDelta(1, "ab", (7,)), 3) == [
        ".0.0.00000000.0.0.00000000_1.1",
        ".0.0.00000000.0.0.00000000_1.2",
        f".0.0.00000000.2.1.{crc32(b'ab'):08x}",
    ]
    assert positions.marks(TextDelta(1, "c"), 0) == [], "it advances without an event"
    (mark,) = positions.marks(TextDelta(0, "", stop=StopReason.END), 1)
    assert mark == f".1.0.00000000.3.1.{crc32(b'abc'):08x}"
    assert positions.last_marks(2) == [f"{mark}_2.1", f"{mark}_e"]


def test_events_that_the_client_has_are_skipped_over_several_outputs() -> None:
    positions = OutputPositions(2, EventPosition(5, (SequencePosition(),) * 2, (1, 3)))
    assert (positions.pending(0), positions.skip(0, 4)) == (0, 0)
    assert (positions.pending(1), positions.skip(1, 2)) == (3, 2)
    assert (positions.pending(1), positions.skip(1, 2)) == (1, 1)
    assert positions.pending(1) == 0
