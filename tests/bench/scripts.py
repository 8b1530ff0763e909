"""The programs under bench/: scripts that people run, and the children that scripts start."""

import argparse
import ast
import importlib
import shlex
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
CHILD = "Child process of `"
"""The first words of a child's docstring; the path of the script that starts it follows."""


def docstring(file: Path) -> str:
    return ast.get_docstring(ast.parse(file.read_text())) or ""


def is_child(file: Path) -> bool:
    return docstring(file).startswith(CHILD)


def name_of(file: Path) -> str:
    """The path as people type it: bench/kernels/paging.py."""
    return file.relative_to(ROOT).as_posix()


PROGRAMS = sorted(file for file in BENCH.rglob("*.py") if '__name__ == "__main__"' in file.read_text())
SCRIPTS = {name_of(file): file for file in PROGRAMS if not is_child(file)}
CHILDREN = {name_of(file): file for file in PROGRAMS if is_child(file)}


BACKENDS = {"iree", "jax", "jaxlib", "mlx", "mlx_lm"}
"""Packages that not every platform has."""


def module_of(script: str) -> ModuleType:
    """Import a script. Skips the test if a backend that the script measures is not installed."""
    try:
        return importlib.import_module(script.removesuffix(".py").replace("/", "."))
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in BACKENDS:
            raise
        pytest.skip(f"{script} needs {error.name}")


def parse(command: str) -> argparse.Namespace:
    """The options of a command `python bench/NAME.py ...`, as the script itself reads them, without running it.

    Raises `LookupError` if there is no such script, and `SystemExit` if it refuses the options.
    """
    interpreter, script, *words = shlex.split(command)
    if interpreter != "python" or script not in SCRIPTS:
        raise LookupError(f"no such script: {command}")
    found = module_of(script).arguments(words)
    assert isinstance(found, argparse.Namespace)
    return found
