"""Every benchmark says what it does, what each of its options means and bounds, and can be run from anywhere."""

import argparse
import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.harness.command_line import above_zero, at_least, command_line, levels, not_negative

BENCH = Path(__file__).parents[3] / "bench"
SCRIPTS = sorted(file for file in BENCH.rglob("*.py") if "add_argument(" in file.read_text())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_option_is_explained(script: Path) -> None:
    for call in ast.walk(ast.parse(script.read_text())):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            assert any(keyword.arg == "help" for keyword in call.keywords), ast.unparse(call)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_number_but_a_seed_has_a_bound(script: Path) -> None:
    for call in ast.walk(ast.parse(script.read_text())):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            kinds = {ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == "type"}
            assert not kinds & {"int", "float"} or ast.literal_eval(call.args[0]) == "--seed", ast.unparse(call)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_its_page_begins_with_how_it_is_called(script: Path) -> None:
    page = ast.get_docstring(ast.parse(script.read_text())) or ""
    assert f"python {script.relative_to(BENCH.parent)}" in page


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
