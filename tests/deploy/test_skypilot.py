"""The files for SkyPilot run commands that exist, with the ports and variables that they declare."""

import re
import shlex
import subprocess
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cli.config.join_address import check_join_addresses
from cli.config.settings import Settings
from cli.config.sources import load
from cli.main import app
from gateway.http.access.auth import OPEN_PATHS
from tests.baton_serve.installation import ROOT
from tests.docs.commands import console_lines

FOLDER = ROOT / "deploy" / "skypilot"
TASKS: dict[str, dict[str, Any]] = {file.stem: yaml.safe_load(file.read_text()) for file in FOLDER.glob("*.yaml")}
FIELDS = {"name", "service", "resources", "workdir", "num_nodes", "file_mounts", "envs", "secrets", "setup", "run"}
"""Those of a task of SkyPilot 0.14 that are used here."""
SET_BY_SKYPILOT = {"SKYPILOT_NODE_RANK"}


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_task_declares_what_its_commands_use(name: str) -> None:
    task = TASKS[name]
    assert set(task) <= FIELDS
    declared = {*task["envs"], *task.get("secrets", ())}
    for script in (task["setup"], task["run"]):
        assert subprocess.run(["bash", "-n"], input=script, text=True, timeout=30).returncode == 0
        assert set(re.findall(r"\$\{?(\w+)", script)) <= declared | SET_BY_SKYPILOT
    for variable in declared:
        setting = variable.removeprefix("BATON_").lower()
        assert setting in Settings.model_fields if variable.startswith("BATON_") else variable in task["run"]


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_task_runs_a_command_of_baton(name: str) -> None:
    (line,) = (line for line in TASKS[name]["run"].splitlines() if line.startswith("exec "))
    _, program, *words = shlex.split(line)
    assert program == "~/baton/bin/baton"
    assert f"{program.removesuffix('baton')}pip install" in TASKS[name]["setup"]
    assert CliRunner().invoke(app, [*words, "--help"]).exit_code == 0


def test_a_replica_is_probed_and_given_its_time() -> None:
    task = TASKS["serve"]
    service = task["service"]
    assert service["readiness_probe"]["path"] in OPEN_PATHS, "the probe sends no key"
    assert f"--port {task['resources']['ports']} " in task["run"]
    assert "--host 0.0.0.0 " in task["run"]
    assert service["load_balancer"]["stream_timeout_seconds"] > Settings.model_fields["request_timeout_s"].default


def test_each_node_has_a_key_of_its_own() -> None:
    task = TASKS["workers"]
    assert task["file_mounts"] == {"~/keys": "./keys"}
    key = '~/keys/worker-"$SKYPILOT_NODE_RANK".key'
    assert task["run"].count(key) == 2
    assert f"--key-file {key}" in task["run"]


def test_workers_join_all_gateways_of_the_guide(monkeypatch: pytest.MonkeyPatch) -> None:
    guide = ROOT / "docs" / "scaling.md"
    (command,) = (line for line in console_lines(guide) if line.startswith("sky launch "))
    given = dict(word.split("=", 1) for word in shlex.split(command) if "=" in word)
    assert set(given) == {name for name, value in TASKS["workers"]["envs"].items() if value is None}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = load({})
    check_join_addresses(settings.join)
    assert (len(settings.join), settings.server_key) == (2, ("SERVER-KEY",))
