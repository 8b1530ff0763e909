"""The commands of `baton chat`, `baton generate` and `baton score` in the pages for people, each run as a process."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cli.config.settings import Settings
from tests.cli.scripted_api import Delta, ScriptedApi, call, text
from tests.docs.commands import ROOT, console_lines
from tests.gateway.images.files import PNG

PAGE = ROOT / "docs" / "operations" / "command-line.md"
ALONE = [line for line in console_lines(ROOT / "README.md") if line.startswith(("baton generate", "baton score"))]
SERVED = [line for line in console_lines(PAGE) if line.startswith(("baton chat ", "baton generate "))]


def run(command: str, folder: Path, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BATON_")}
    words = [sys.executable, "-P", "-m", "cli", *shlex.split(command)[1:], *more]
    environment |= {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder)} | variables
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, input="/exit\n", timeout=100
    )


@pytest.mark.parametrize("command", [line for line in [*ALONE, "baton chat"] if "--json-schema" not in line])
def test_a_command_without_a_server(command: str, tmp_path: Path) -> None:
    """With the scripted backend, whose answers are fixed."""
    assert "BATON_BACKEND" in {f"BATON_{name.upper()}" for name in Settings.model_fields}
    ended = run(command, tmp_path, BATON_BACKEND="scripted")
    assert (ended.returncode, "Error" in ended.stderr) == (0, False), ended.stderr
    assert ended.stdout


@pytest.mark.parametrize("command", [line for line in ALONE if "--json-schema" in line])
def test_the_built_in_model_follows_the_schema_of_the_readme(command: str, tmp_path: Path) -> None:
    ended = run(command, tmp_path)
    assert (ended.returncode, json.loads(ended.stdout)) == (0, {"name": "Anna", "age": 34}), ended.stderr


@pytest.mark.parametrize("command", SERVED)
def test_a_command_that_uses_a_server(command: str, tmp_path: Path) -> None:
    """With the file of tools in the page, and a picture."""
    (tmp_path / "cat.png").write_bytes(PNG)
    tools = re.search(r"```json\n(\[.*?)```", PAGE.read_text().partition("\n## Chat and generate\n")[2], re.DOTALL)
    assert tools
    (tmp_path / "tools.json").write_text(tools[1])
    answer: list[Delta] = (
        call("get_weather", '{"city": "Paris"}') if "tools" in command else [text('{"city": "Paris"}')]
    )
    api = ScriptedApi([answer])
    with api.serve():
        ended = run(command, tmp_path, "--url", api.url)
    assert (ended.returncode, ended.stderr) == (0, "")
    if command.startswith("baton generate"):
        assert '"Paris' in json.dumps(json.loads(ended.stdout)).replace("\\", "")
        assert {"tools", "response_format"} & api.bodies[0].keys()


def test_the_pages_have_these_commands() -> None:
    assert len(ALONE) == 4
    assert {"--json-schema", "--tools", "--tool-command"} <= {word for line in SERVED for word in shlex.split(line)}
