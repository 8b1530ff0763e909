"""The service files are well-formed, run existing commands, and allow enough time for a shutdown."""

import configparser
import plistlib
import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from actors.supervision.deadlines import Deadlines
from cli.config.settings import JOINING, Settings, of_panels
from cli.config.sources import CONFIG_VARIABLE, load
from cli.main import app

DEPLOY = Path(__file__).parents[2] / "deploy"
GRACE = Settings.model_fields["shutdown_grace_s"].default


def unit(name: str = "baton.service") -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's names have capitals
    parser.read_string((DEPLOY / name).read_text())
    return parser


def test_the_systemd_unit_runs_serve_and_signals_the_gateway_alone() -> None:
    service = unit()["Service"]
    assert shlex.split(service["ExecStart"])[-1:] == ["serve"]
    assert service["KillMode"] == "mixed"
    assert int(service["TimeoutStopSec"]) > GRACE
    assert unit()["Install"]["WantedBy"] == "default.target"


def test_a_reload_of_the_systemd_unit_reloads_the_keys() -> None:
    words = shlex.split(unit()["Service"]["ExecReload"])
    assert CliRunner().invoke(app, [*words[1:], "--help"]).exit_code == 0
    assert words[1:] == ["admin", "reload-keys"]


def test_the_systemd_unit_of_a_worker_runs_worker_and_signals_its_supervisor_alone() -> None:
    service = unit("baton-worker.service")["Service"]
    assert shlex.split(service["ExecStart"])[-1:] == ["worker"]
    assert service["KillMode"] == "mixed"
    limits = Deadlines()
    assert int(service["TimeoutStopSec"]) > limits.stop + limits.term
    assert CONFIG_VARIABLE in service["Environment"]


def test_the_settings_of_a_worker_can_be_loaded(tmp_path: Path) -> None:
    text = re.search(r"worker\.toml`:\n\n```toml\n(.*?)```", (DEPLOY / "README.md").read_text(), re.DOTALL)
    assert text is not None
    file = tmp_path / "worker.toml"
    file.write_text(text[1])
    settings = load({}, file)
    assert all(getattr(settings, name) for name in of_panels(JOINING))


def test_the_launchd_agent_runs_serve_and_waits_long_enough() -> None:
    agent = plistlib.loads((DEPLOY / "org.baton.serve.plist").read_bytes())
    assert agent["Label"] == "org.baton.serve"
    assert "serve" in shlex.split(agent["ProgramArguments"][-1])
    assert agent["ExitTimeOut"] > GRACE
    assert agent["KeepAlive"] == {"SuccessfulExit": False}
