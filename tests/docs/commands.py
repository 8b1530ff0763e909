"""The commands of the pages for people, and how a test runs one of them."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
OPERATIONS = ROOT / "docs" / "operations.md"
OPERATIONS_PAGES = [
    OPERATIONS,
    *(
        OPERATIONS.parent / name
        for name in re.findall(r"^- \[.*?\]\((operations/[\w-]+\.md)\)", OPERATIONS.read_text(), re.M)
    ),
]
"""The index of the operations guide and its pages, in the order of the index."""


def console_blocks(text: str) -> Iterator[list[str]]:
    """The lines of each console block of a page, those of list items included."""
    for block in re.findall(r"^ *```console\n(.*?)^ *```", text, flags=re.MULTILINE | re.DOTALL):
        yield [line.strip() for line in block.splitlines() if line.strip()]


def console_lines(page: Path) -> Iterator[str]:
    """Every line of the page's console blocks."""
    for block in console_blocks(page.read_text()):
        yield from block


def run_command(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as in the environment of these tests, but not as a part of them."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV", "GIT_"))}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["PRE_COMMIT_HOME"] = str(folder / ".pre-commit")
    return subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
