"""An owned server ends with the process that started it, and reports that it cannot be started."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from cli.client.owned_server import owned_server
from cli.config.errors import CommandFailed
from cli.config.model import ChosenModel
from cli.config.settings import Settings


def fail(settings: Settings, model: ChosenModel) -> NoReturn:
    raise RuntimeError(f"{model.name} fails on port {settings.port}")


def test_a_server_that_ends_before_it_listens_is_a_command_error(tmp_path: Path) -> None:
    log = tmp_path / "log"
    options = {"backend": "scripted", "host": "192.0.2.1", "port": 8000, "listen_workers": "tcp://192.0.2.1:1"}
    with (
        pytest.raises(CommandFailed, match="the server ended before it listened"),
        owned_server(options, fail, log=log),
    ):
        pass
    assert "scripted fails on port 0" in log.read_text(), "its settings are overruled, so that it gets a free port"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_a_server_leaves_nothing_behind_when_its_owner_is_killed(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cli", "chaos", "--own", "--backend", "scripted", "--faults", "raise"]
    temporary = {"TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    with subprocess.Popen(
        [*command, "--seconds", "300"], env=os.environ | temporary, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith(b"seed"):
            assert process.poll() is None
        process.send_signal(number)
        process.stdout.read()  # until the server and its workers have closed it, too
    assert list(tmp_path.iterdir()) == []
