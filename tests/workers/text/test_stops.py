"""Stop strings: the text ends before the first one, however it is split into tokens."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.bounds import MAX_STOP_CHARS, MAX_STOPS
from workers.text.byte_tokenizer import ByteTokenizer
from workers.text.detokenizer import IncrementalDetokenizer
from workers.text.stops import StopScanner


def reference(text: str, stops: list[str]) -> tuple[str, bool]:
    """Character by character: the stop that is completed first, the longest of those that end together."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


@settings(max_examples=300, deadline=None)
@given(
    text=st.text("abc", max_size=60),
    stops=st.lists(st.text("abc", min_size=1, max_size=6), max_size=4),
    splits=st.lists(st.integers(0, 60)),
)
def test_any_split_gives_the_same_text(text: str, stops: list[str], splits: list[int]) -> None:
    edges = sorted({0, len(text), *(split for split in splits if split < len(text))})
    scanner = StopScanner(stops)
    sent = "".join(scanner.push(text[start:end]) for start, end in pairwise(edges))
    expected, stopped = reference(text, stops)
    assert scanner.stopped == stopped
    assert expected.startswith(sent)
    assert sent + scanner.finish() == expected


@settings(max_examples=200, deadline=None)
@given(
    text=st.text("abc", max_size=60),
    stops=st.lists(st.text("abc", min_size=1, max_size=6), max_size=4),
    splits=st.lists(st.integers(0, 60)),
)
def test_a_stop_that_is_kept_is_the_end_of_the_text_and_nothing_is_held_back(
    text: str, stops: list[str], splits: list[int]
) -> None:
    ends = [end for end in range(1, len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    expected = text[: ends[0]] if ends else text
    edges = sorted({0, len(text), *(split for split in splits if split < len(text))})
    scanner, sent = StopScanner(stops, keep=True), ""
    for start, end in pairwise(edges):
        sent += scanner.push(text[start:end])
        assert sent == expected[:end]
    assert scanner.stopped == bool(ends)
    assert scanner.finish() == ""


def test_case_counts() -> None:
    scanner = StopScanner(["END"])
    assert scanner.push("the end") + scanner.finish() == "the end"
    assert not scanner.stopped


@settings(max_examples=200, deadline=None)
@given(text=st.text("ab", max_size=40), stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3))
def test_only_the_beginning_of_a_stop_is_held_back(text: str, stops: list[str]) -> None:
    scanner, sent = StopScanner(stops), ""
    for count, character in enumerate(text, 1):
        sent += scanner.push(character)
        if scanner.stopped:
            break
        held = text[len(sent) : count]
        longest = max(n for stop in stops for n in range(len(stop)) if text[:count].endswith(stop[:n]))
        assert len(held) == longest


@pytest.mark.parametrize(
    ("stops", "pushes", "sent"),
    [
        pytest.param(["END"], ["a E", "N", "D b"], ["a ", "", ""], id="across-tokens"),
        pytest.param(["END"], ["E", "N", "x"], ["", "", "ENx"], id="released-when-it-is-none"),
        pytest.param(["aab"], ["aaa", "b"], ["a", ""], id="overlapping-itself"),
        pytest.param(["abc", "b"], ["abc"], ["a"], id="first-complete-wins"),
        pytest.param(["c", "bc"], ["abc"], ["a"], id="longest-of-those-that-end-together"),
        pytest.param(["\n\n"], ["one\n", "two\n", "\n"], ["one", "\ntwo", ""], id="blank-line"),
    ],
)
def test_pushes(stops: list[str], pushes: list[str], sent: list[str]) -> None:
    scanner = StopScanner(stops)
    assert [scanner.push(text) for text in pushes] == sent


def test_nothing_comes_after_a_stop() -> None:
    scanner = StopScanner(["."])
    assert scanner.push("one. two") == "one"
    assert scanner.push(" three") == ""
    assert scanner.finish() == ""


def test_the_largest_stops_that_the_wire_allows() -> None:
    stops = [f"{index:x}" + "z" * (MAX_STOP_CHARS - 1) for index in range(MAX_STOPS)]
    scanner = StopScanner(stops)
    assert scanner.push("f" + "z" * (MAX_STOP_CHARS - 2)) == ""
    assert scanner.push("z") == ""
    assert scanner.stopped


def test_a_stop_completed_by_the_last_bytes() -> None:
    """An incomplete character becomes U+FFFD at the end, which may complete a stop string."""
    stream = IncrementalDetokenizer(ByteTokenizer(), [], ("\ufffd",))
    assert stream.push(ord("a")) == "a"
    assert stream.push(0xF0) == ""
    assert stream.finish() == ""
    assert stream.stopped
