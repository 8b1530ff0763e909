"""Every benchmark's command in the documentation is one that the script accepts, and every path is a file's."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.scripts import ROOT, SCRIPTS, parse
from tests.bench.test_smoke import OUTPUT

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]


def commands(page: Path) -> Iterator[str]:
    """Every `python bench/...` of a page: in inline code, which may be broken over two lines, and in code blocks."""
    text = page.read_text()
    for inline in re.findall(r"`(python bench/[^`]+)`", text):
        yield " ".join(inline.split())
    for block in re.findall(r"^```\w*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        yield from re.findall(r"^(python bench/.*)$", block, flags=re.MULTILINE)


DOCUMENTED = sorted({command for page in PAGES for command in commands(page)})


@pytest.mark.parametrize("command", DOCUMENTED)
def test_a_documented_command_is_accepted(command: str) -> None:
    parse(command)


def test_commands_are_found() -> None:
    assert {"python bench/engine.py", "python bench/gpu_check.py --compile-only"} <= set(DOCUMENTED)


def test_every_documented_script_runs_in_the_tests() -> None:
    documented = {command.split()[1] for command in DOCUMENTED}
    assert documented <= OUTPUT.keys()


def test_every_script_is_documented() -> None:
    assert {command.split()[1] for command in DOCUMENTED} == SCRIPTS.keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_file_of_bench_that_is_named_exists(page: Path) -> None:
    for name in re.findall(r"\bbench/[\w/]+\.py\b", page.read_text()):
        assert (ROOT / name).is_file(), name


def test_options_are_documented_with_their_command() -> None:
    """No test could check an option alone, as in (`--rounds 3`)."""
    text = "".join(page.read_text() for page in ROOT.glob("docs/benchmarks*/**/*.md"))
    assert set(re.findall(r"`(--[^`]+)`", text)) <= {"--help", "--smoke"}
