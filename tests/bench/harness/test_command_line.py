"""The options, modes and bounds of the benchmarks' command lines."""

import argparse
from collections.abc import Callable
from typing import Any

import pytest

from bench.harness.command_line import above_zero, at_least, command_line, levels, not_negative, parsed


def test_help_has_the_page_as_it_is_and_the_defaults_that_are_values() -> None:
    parser = command_line("One line.\n\n    python bench/x.py")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8], help="at once")
    parser.add_argument("--share", default="5 %", help="of 100 %")
    parser.add_argument("--device", default="", help="empty is its own")
    parser.add_argument("--running", type=int, default=0, help="meanwhile")
    parser.add_argument("--most", type=float, help="% of memory")
    parser.add_argument("--quick", action="store_true", help="less of it")
    shown = parser.format_help()
    assert "One line.\n\n    python bench/x.py\n" in shown
    assert "at once (default: 1 8)\n" in shown
    assert "of 100 % (default: 5 %)\n" in shown
    assert "empty is its own\n" in shown
    assert "meanwhile (default: 0)\n" in shown
    assert "% of memory\n" in shown
    assert "less of it\n" in shown


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (at_least(1), "1", 1),
        (at_least(0), "0", 0),
        (levels, "1,64", [1, 64]),
        (above_zero, "0.001", 0.001),
        (not_negative, "0", 0.0),
    ],
)
def test_the_least_that_a_number_may_be(kind: Callable[[str], Any], text: str, value: object) -> None:
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (at_least(1), "0", "must be 1 or more, not 0"),
        (at_least(0), "-1", "must be 0 or more, not -1"),
        (at_least(1), "1.5", "'1.5' is not a whole number"),
        (levels, "4,0", "must be 1 or more, not 0"),
        (levels, "", "'' is not a whole number"),
        (above_zero, "0", "must be above 0, not 0"),
        (above_zero, "nan", "must be a finite number of 0 or more, not nan"),
        (not_negative, "-0.1", "must be a finite number of 0 or more, not -0.1"),
        (not_negative, "inf", "must be a finite number of 0 or more, not inf"),
        (not_negative, "soon", "'soon' is not a number"),
    ],
)
def test_a_number_beyond_its_bound_is_refused(kind: Callable[[str], Any], text: str, says: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=says):
        kind(text)


def parser_of_rounds() -> argparse.ArgumentParser:
    parser = command_line("One line.")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="of each")
    parser.add_argument("--streams", type=levels, default="1,64", help="at once")
    return parser


@pytest.mark.parametrize(
    ("words", "rounds", "streams"),
    [
        ([], 5, [1, 64]),
        (["--smoke"], 1, [2]),
        (["--rounds", "3", "--smoke"], 3, [2]),
        (["--streams", "4"], 5, [4]),
    ],
)
def test_a_mode_replaces_the_defaults_of_options_that_are_not_given(
    words: list[str], rounds: int, streams: list[int]
) -> None:
    args = parsed(parser_of_rounds(), words, smoke={"rounds": 1, "streams": "2"})
    assert (args.rounds, args.streams) == (rounds, streams)


def test_a_mode_of_options_that_do_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="mode smoke: no such options: round, stream"):
        parsed(parser_of_rounds(), [], smoke={"round": 1, "stream": 2})


def test_options_are_not_abbreviated() -> None:
    with pytest.raises(SystemExit):
        parsed(parser_of_rounds(), ["--round", "3"])
