"""The commands of the pages for contributors. Continuous integration runs some; the others run here, in the sdist."""

import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from baton_serve import __version__
from tests.baton_serve.installation import build
from tests.conftest import EXHAUSTIVE, pytest_collection_modifyitems
from tests.docs.commands import ROOT, console_lines, run_command

BY_CI = (ROOT / ".ci" / "run").read_text()
BY_OTHERS = {
    "bash .ci/run": "continuous integration",
    "pip install -e '.[test]' && pytest": "continuous integration, which reads it in the README",
    "mypy": "continuous integration",
    "pre-commit install": "test_hosting.py",
    "pre-commit run --all-files": "test_hosting.py",
}
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "CODE_OF_CONDUCT.md", ROOT / "docs" / "releasing.md"]
LINES = [line for page in PAGES for line in console_lines(page)]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    folder = tmp_path_factory.mktemp("project")
    with tarfile.open(build("sdist", tmp_path_factory.mktemp("sdist"))) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"baton_serve-{__version__}"


@pytest.mark.parametrize("command", [line for line in LINES if line not in {*BY_CI.splitlines(), *BY_OTHERS}])
def test_a_command_works(project: Path, command: str) -> None:
    done = run_command(command, project)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("command", BY_OTHERS)
def test_a_command_that_others_run_is_on_a_page(command: str) -> None:
    assert command in LINES


class CollectedTest:
    """A test as pytest has collected it."""

    def __init__(self, name: str, *marks: str) -> None:
        self.name, self.nodeid, self.marks = name, f"tests/test_a.py::{name}", set(marks)

    def add_marker(self, mark: str) -> None:
        self.marks.add(mark)

    def get_closest_marker(self, mark: str) -> bool:
        return mark in self.marks


def selected(config: Any) -> tuple[list[str], list[str]]:
    """The names of the tests that run, and of those that are left out."""
    left_out: list[Any] = []
    config.hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    tests = [CollectedTest("plain[1]"), CollectedTest("plain[2]"), CollectedTest("slow", "slow")]
    items: list[Any] = [*tests, CollectedTest("marked", "slow", "exhaustive"), CollectedTest("named[1]")]
    pytest_collection_modifyitems(config, items)
    return [each.name for each in items], [each.name for each in left_out]


@pytest.mark.parametrize("source", ["this process", "a process of xdist"])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("wanted", ["1", "0", ""])
def test_further_combinations_are_left_out(
    source: str, whole: bool, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EXHAUSTIVE, wanted)
    monkeypatch.setattr("tests.conftest.FURTHER_CASES", {"test_a.py": ("plain[2]", "named")})
    sources = pytest.Config.ArgsSource
    config = SimpleNamespace(args_source=sources.TESTPATHS if whole else sources.ARGS)
    if source == "a process of xdist":
        config = SimpleNamespace(args_source=sources.ARGS, workerinput={"whole_suite": whole})
    if whole and wanted != "1":
        assert selected(config) == (["plain[1]", "slow"], ["plain[2]", "marked", "named[1]"])
    else:
        assert selected(config) == (["plain[1]", "plain[2]", "slow", "marked", "named[1]"], [])


def test_a_further_case_that_there_is_not_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.conftest.FURTHER_CASES", {"test_a.py": ("plain[3]",)})
    with pytest.raises(pytest.UsageError, match=r"tests/test_a\.py::plain\[3\]"):
        selected(SimpleNamespace(args_source=pytest.Config.ArgsSource.TESTPATHS))
