"""The commands of the pages for contributors. Continuous integration runs some; the others run here, in the sdist."""

import tarfile
from pathlib import Path

import pytest

from baton_serve import __version__
from tests.baton_serve.installation import build
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
