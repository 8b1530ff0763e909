"""The guide to the chart, docs/scaling.md: its commands make the keys that its values name."""

import contextlib
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from typer.testing import CliRunner

from actors.transport.allow_list import AllowList
from actors.transport.keys import read_key
from cli.main import app
from tests.baton_serve.installation import ROOT
from tests.deploy.helm.chart import Release
from tests.deploy.helm.library import CHART, installed, render
from tests.docs.commands import console_blocks, run_command

GUIDE = (ROOT / "docs" / "scaling.md").read_text()
(KEYS,) = (block for block in console_blocks(GUIDE) if any("worker-keys init" in line for line in block))
SECRETS = [line for line in KEYS if line.startswith("kubectl create secret ")]
FILES: dict[str, Any] = {
    text.partition("\n")[0].removeprefix("# "): yaml.safe_load(text)
    for text in re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
}


def run_here(line: str) -> str:
    """Run a command of `baton` in this process, and return what it prints."""
    words = [run_here(word[2:-1]) if word.startswith("$(") else word for word in shlex.split(line)]
    assert words[0] == "baton"
    done = CliRunner().invoke(app, words[1:])
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the commands that make keys were run."""
    made = tmp_path_factory.mktemp("keys")
    with contextlib.chdir(made):
        for line in KEYS:
            if line not in SECRETS:
                run_here(line)
    return made


def entries(command: str) -> dict[str, str]:
    """The entries of the Secret that a command makes, and where each comes from."""
    words = [word.partition("=")[2] for word in shlex.split(command) if word.startswith("--from-")]
    return {Path(word.partition("=")[0]).name: word for word in words}


def test_the_values_name_the_secrets_and_the_keys_that_the_commands_make(folder: Path) -> None:
    values = FILES["fleet.yaml"]
    made = {shlex.split(line)[4]: entries(line) for line in SECRETS}
    assert set(made[values["join"]["gatewaySecret"]]) == {"gateway.key"}
    workers = [f"worker-{number}" for number in range(values["workers"]["replicas"])]
    assert set(made[values["join"]["workerSecret"]]) == {f"{name}.key" for name in workers}
    assert set(made[values["auth"]["existingSecret"]]) == {"api-key", "admin-key"}
    assert sorted(AllowList(folder / "keys").read().names.values()) == workers == list(values["join"]["publicKeys"])
    for file in (file for each in made.values() for file in each.values() if "/" in file):
        assert (folder / file).is_file()


def test_kubectl_accepts_the_commands(folder: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    for line in SECRETS:
        done = run_command(f"{line} --dry-run=client --output=json", folder)
        assert done.returncode == 0, done.stderr
        assert set(json.loads(done.stdout)["data"]) == set(entries(line))


def test_the_chart_takes_the_values_with_the_keys(folder: Path) -> None:
    if not installed():
        pytest.skip("Helm's library is not installed: pip install '.[helm]'")
    values = FILES["fleet.yaml"]
    values["join"]["serverKey"] = read_key(folder / "keys" / "gateway.key").public_text
    for name in values["join"]["publicKeys"]:
        values["join"]["publicKeys"][name] = read_key(folder / "keys" / f"{name}.key").public_text
    fleet, behind = render([values, FILES["for each release"]])
    assert (fleet.error, behind.error) == ("", "")
    assert set(Release(fleet.templates).pods) == {"gateway", "worker"}
    assert 'metrics_names = "vllm"' in Release(behind.templates).toml("gateway")


def test_the_flags_of_helm_are_values() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    lines = [line for block in console_blocks(GUIDE) for line in block if line.startswith("helm ")]
    given = [word for line in lines for word in re.findall(r"--set (\S+)", line)]
    assert given
    values: dict[str, Any] = {}
    for word in given:
        path, _, value = word.partition("=")
        *parents, name = path.split(".")
        place = values
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = value
    assert [str(error) for error in jsonschema_rs.validator_for(schema).iter_errors(values)] == []


def test_the_configuration_of_the_picker_refers_to_its_own_plugins() -> None:
    config = FILES["/etc/epp/config.yaml"]
    plugins = {each.get("name", each["type"]): each for each in config["plugins"]}
    used = {each["pluginRef"] for profile in config["schedulingProfiles"] for each in profile["plugins"]}
    used.add(config["dataLayer"]["discovery"]["pluginRef"])
    assert used == set(plugins) - {"single-profile-handler"}
    (endpoints,) = (text for name, text in FILES.items() if name.startswith("/etc/epp/endpoints.yaml"))
    assert plugins["machines"]["parameters"]["path"] == "/etc/epp/endpoints.yaml"
    assert {each["port"] for each in endpoints["endpoints"]} == {"8000"}
