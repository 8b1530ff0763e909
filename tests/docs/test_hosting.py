"""Files of the hosting platform and pre-commit: they are well-formed, and name commands, files and versions that
exist."""

import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.commands import ROOT, run_command

HOOKS = ROOT / ".pre-commit-config.yaml"
FORMS = sorted(file for file in ROOT.glob(".github/ISSUE_TEMPLATE/*.yml") if file.stem != "config")
CI = (ROOT / ".ci" / "run").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def workflow() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    return loaded


def steps() -> Iterator[dict[str, Any]]:
    for job in workflow()["jobs"].values():
        yield from job["steps"]


def test_the_workflow_runs_commands_that_exist() -> None:
    commands = [step["run"] for step in steps() if "run" in step]
    assert "bash .ci/run" in commands
    for command in commands:
        match shlex.split(command):
            case ["bash", script]:
                assert subprocess.run(["bash", "-n", script], cwd=ROOT).returncode == 0
            case ["pip", "install", "-e", ".[test]"]:
                pass
            case ["pytest", "-n", "0", folder]:
                assert (ROOT / folder).is_dir()
            case _:
                pytest.fail(f"nothing checks {command!r}")


def test_the_workflow_tests_the_versions_that_the_metadata_names() -> None:
    linux, macos = (job["strategy"]["matrix"] for job in workflow()["jobs"].values())
    tested = {each["python"] for each in linux["include"]}
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert tested == set(named)
    assert set(macos["python"]) <= tested
    assert PROJECT["requires-python"] == f">={min(named, key=lambda version: int(version[2:]))}"


def test_the_workflow_chooses_extras_that_exist() -> None:
    linux, _ = workflow()["jobs"].values()
    extras = {each["extra"] for each in linux["strategy"]["matrix"]["include"]}
    extras |= {step["env"]["EXTRA"] for step in steps() if "EXTRA" in step.get("env", {})} - {"${{ matrix.extra }}"}
    assert extras <= set(PROJECT["optional-dependencies"])
    assert "${EXTRA:-reference}" in CI


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_an_issue_form_is_one_that_the_platform_shows(form: Path) -> None:
    loaded = yaml.safe_load(form.read_text())
    assert {"name", "description", "body"} <= set(loaded) <= {"name", "description", "body", "labels", "title"}
    asked = [field for field in loaded["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in asked} <= {"textarea", "input", "dropdown", "checkboxes"}
    assert all(field["attributes"]["label"] for field in asked)
    names = [field["id"] for field in asked]
    assert len(set(names)) == len(names)


def test_a_commit_is_checked_as_in_continuous_integration() -> None:
    (repository,) = yaml.safe_load(HOOKS.read_text())["repos"]
    assert repository["repo"] == "local"
    for hook in repository["hooks"]:
        assert hook["language"] == "system"
        command = hook["entry"].replace(" --force-exclude", "")
        assert re.search(rf"^(nice )?{re.escape(command)}( |$)", CI, flags=re.MULTILINE), command


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the hooks, and one module that they accept."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    for file in (HOOKS, ROOT / "pyproject.toml"):
        (tmp_path / file.name).write_text(file.read_text())
    (tmp_path / "module.py").write_text('"""Nothing."""\n')
    for command in ("git init --quiet", "pre-commit install", "git add --all"):
        assert run_command(command, tmp_path).returncode == 0
    return tmp_path


def hooks_of(repository: Path) -> subprocess.CompletedProcess[str]:
    """All but mypy, which checks the packages of the house."""
    return run_command("SKIP=mypy pre-commit run --all-files", repository)


def test_the_hooks_accept_what_is_in_order(repository: Path) -> None:
    done = hooks_of(repository)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Passed") == 2


@pytest.mark.parametrize("text", ["import os\n", "x = [1,2]\n"], ids=["check", "format"])
def test_the_hooks_refuse_what_is_not(repository: Path, text: str) -> None:
    (repository / "module.py").write_text(text)
    run_command("git add --all", repository)
    done = hooks_of(repository)
    assert done.returncode == 1
    assert done.stdout.count("Failed") == 1
