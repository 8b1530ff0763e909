"""Docstrings begin with their subject or with a verb."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("baton_serve", "protocol", "actors", "gateway", "workers", "models", "cli", "bench", "tests")
WORDS = "What|Where|Who|Whose|Of|How|Whether|Which"
AVOIDED = re.compile(rf"\s*({WORDS})\b")
AFTER_QUOTE = re.compile(rf"[\"'][\s\\]*({WORDS})\b")
"""A source without it needs no parsing, which takes seconds for all sources."""


def docstrings(source: str) -> Iterator[ast.Constant]:
    """Yield the docstrings of a module, its classes, functions, constants and attributes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                match statement:
                    case ast.Expr(value=ast.Constant(value=str()) as text):
                        yield text


def findings(source: str, name: str) -> list[str]:
    """Return a line for each docstring that begins with one of these words."""
    if not AFTER_QUOTE.search(source):
        return []
    return [
        f"{name}:{text.lineno}: {str(text.value)[:60]!r}: begin with the subject or a verb"
        for text in docstrings(source)
        if AVOIDED.match(str(text.value))
    ]


def test_docstrings_begin_with_their_subject_or_a_verb() -> None:
    found = []
    for file in (file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))):
        found += findings(file.read_text(), file.relative_to(ROOT).as_posix())
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        '"""What runs."""',
        'class A:\n    """Of a kind."""',
        'class A:\n    b: int\n    """How many."""',
        'async def f():\n    """\n    Whether it runs."""',
        'A = 1\n"""Which one."""',
        'def f():\n    """\\\n    What asks."""',
    ],
)
def test_such_a_docstring_is_found(source: str) -> None:
    assert len(findings(source, "module.py")) == 1


@pytest.mark.parametrize("source", ['"""Whatever is left."""', '"""Often read."""', 'f("What is it?")'])
def test_other_strings_are_not_reported(source: str) -> None:
    assert findings(source, "module.py") == []
