"""Every benchmark says what it does, what each of its options means, and can be run from anywhere."""

import ast
from pathlib import Path

import pytest

from bench.command_line import command_line

BENCH = Path(__file__).parents[2] / "bench"
SCRIPTS = sorted(file for file in BENCH.rglob("*.py") if "add_argument(" in file.read_text())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_option_is_explained(script: Path) -> None:
    for call in ast.walk(ast.parse(script.read_text())):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            assert any(keyword.arg == "help" for keyword in call.keywords), ast.unparse(call)


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
