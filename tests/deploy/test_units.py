"""The service files are well-formed, run existing commands, and allow enough time for a shutdown."""

import configparser
import plistlib
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from actors.supervision.deadlines import Deadlines
from cli.config.panels.field import JOINING
from cli.config.settings import Settings, of_panels
from cli.config.sources import CONFIG_VARIABLE, load
from cli.main import app

DEPLOY = Path(__file__).parents[2] / "deploy"
GRACE = Settings.model_fields["shutdown_grace_s"].default


def unit(name: str = "baton.service") -> configparser.ConfigParser:
    """A unit, in which no name occurs twice. Of adjacent `EnvironmentFile` lines, the last one."""
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's names have capitals
    text = (DEPLOY / name).read_text()
    parser.read_string(re.sub(r"^EnvironmentFile=.*\n(?=EnvironmentFile=)", "", text, flags=re.MULTILINE))
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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("baton-worker.service", ["worker"]),
        ("baton-worker@.service", ["worker", "--key-file", "%h/.config/baton/%i.key"]),
    ],
)
def test_the_systemd_unit_of_a_worker_runs_worker_and_signals_its_supervisor_alone(name: str, words: list[str]) -> None:
    service = unit(name)["Service"]
    assert shlex.split(service["ExecStart"])[1:] == words
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
    optional = {"health_file", "join_token", "join_timeout_s"}
    assert all(getattr(settings, name) for name in of_panels(JOINING) if name not in optional)


def test_the_launchd_agent_runs_serve_and_waits_long_enough() -> None:
    agent = plistlib.loads((DEPLOY / "org.baton.serve.plist").read_bytes())
    assert agent["Label"] == "org.baton.serve"
    assert "serve" in shlex.split(agent["ProgramArguments"][-1])
    assert agent["ExitTimeOut"] > GRACE
    assert agent["KeepAlive"] == {"SuccessfulExit": False}


UNITS = sorted(DEPLOY.glob("*.service"))


@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.name)
def test_systemd_accepts_the_unit(file: Path, tmp_path: Path) -> None:
    """With a program that exists: the units name one in the user's home."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    copied = tmp_path / file.name.replace("@", "@blue")
    copied.write_text(re.sub(r"%h/\S+/bin/baton", "/bin/true", file.read_text()))
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", "--man=no", str(copied)],
        capture_output=True,
        text=True,
        timeout=60,
        env={"XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.name)
def test_a_unit_says_when_it_is_ready_and_is_watched(file: Path) -> None:
    service = unit(file.name)["Service"]
    assert (service["Type"], service["NotifyAccess"]) == ("notify", "main")
    assert service["TimeoutStartSec"] == "infinity"  # a model may be downloaded and compiled
    assert int(service["WatchdogSec"]) >= 30


@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.name)
def test_a_unit_is_as_exposed_as_the_guide_says(file: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    found = re.search(r"Overall exposure level for .*: (\d+\.\d) ", done.stdout)
    assert found, done.stdout + done.stderr
    limit = re.search(r"exposure level of ([\d.]+) or less", (DEPLOY / "README.md").read_text())
    assert limit
    assert float(found[1]) <= float(limit[1])


def test_plutil_accepts_the_launchd_agent() -> None:
    if shutil.which("plutil") is None:
        pytest.skip("this is not macOS")
    subprocess.run(["plutil", "-lint", str(DEPLOY / "org.baton.serve.plist")], check=True, timeout=60)


def test_the_launchd_agent_has_only_keys_that_launchd_knows() -> None:
    """The types are those of launchd.plist(5)."""
    known = {
        "Label": str,
        "ProgramArguments": list,
        "RunAtLoad": bool,
        "KeepAlive": dict,
        "ExitTimeOut": int,
        "ThrottleInterval": int,
    }
    agent = plistlib.loads((DEPLOY / "org.baton.serve.plist").read_bytes())
    assert {name: type(value) for name, value in agent.items()}.items() <= known.items()


def test_each_instance_of_a_worker_has_a_key_of_its_own() -> None:
    words = shlex.split(unit("baton-worker@.service")["Service"]["ExecStart"])
    assert words[2:] == ["--key-file", "%h/.config/baton/%i.key"]
    assert CliRunner().invoke(app, [words[1], *words[2:], "--help"]).exit_code == 0
