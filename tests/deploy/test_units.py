"""The service files are well-formed, run a command that exists, and give a shutdown the time that it needs."""

import configparser
import plistlib
import shlex
from pathlib import Path

from cli.settings import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"
GRACE = Settings.model_fields["shutdown_grace_s"].default


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's names have capitals
    parser.read_string((DEPLOY / "baton.service").read_text())
    return parser


def test_the_systemd_unit_runs_serve_and_signals_the_gateway_alone() -> None:
    service = unit()["Service"]
    assert shlex.split(service["ExecStart"])[-1:] == ["serve"]
    assert service["KillMode"] == "mixed"
    assert int(service["TimeoutStopSec"]) > GRACE
    assert unit()["Install"]["WantedBy"] == "default.target"


def test_the_launchd_agent_runs_serve_and_waits_long_enough() -> None:
    agent = plistlib.loads((DEPLOY / "org.baton.serve.plist").read_bytes())
    assert agent["Label"] == "org.baton.serve"
    assert "serve" in shlex.split(agent["ProgramArguments"][-1])
    assert agent["ExitTimeOut"] > GRACE
    assert agent["KeepAlive"] == {"SuccessfulExit": False}
