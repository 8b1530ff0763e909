"""The order in which a process of Baton looks for modules."""

from pathlib import Path

import pytest

from baton_serve.start import ROOT, module_command, search_path
from tests.baton_serve.installation import run

LIBRARY = "/usr/lib/python3.11"
INSTALLED = [LIBRARY, f"{LIBRARY}/lib-dynload", "/venv/lib/python3.11/site-packages"]


@pytest.mark.parametrize(
    "before",
    [[], ["/venv/bin"], ["/here", "/on/pythonpath", "/usr/lib/python311.zip"], [ROOT], ["/on/pythonpath", ROOT]],
)
def test_our_packages_come_first_and_pythonpath_last(before: list[str]) -> None:
    assert search_path([*before, *INSTALLED], LIBRARY) == [ROOT, *INSTALLED, *(each for each in before if each != ROOT)]


def test_a_path_without_a_standard_library_keeps_its_order() -> None:
    """As in a Python that is embedded or in an archive."""
    assert search_path(["/a", "/b"], LIBRARY) == [ROOT, "/a", "/b"]


def test_a_module_is_run_as_python_would_run_it(tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text("import sys; print(__name__, sys.argv[0] == __file__, *sys.argv[1:])\n")
    given = module_command("shown", "--flag", "a b")
    assert run(*given, environment={"PYTHONPATH": str(tmp_path)}).strip() == "__main__ True --flag a b"
