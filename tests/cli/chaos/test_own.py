"""A server of one's own ends with whoever started it; one that cannot be started is said to be so."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from cli.chaos.own import own_server
from cli.config.errors import CommandFailed
from cli.config.model import ChosenModel
from cli.config.settings import Settings


def broken(settings: Settings, model: ChosenModel) -> NoReturn:
    raise RuntimeError(f"{model.name} was told to fail on port {settings.port}")


def test_a_server_that_ends_before_it_listens_is_not_waited_for(tmp_path: Path) -> None:
    log = tmp_path / "log"
    options = {"backend": "scripted", "host": "192.0.2.1", "port": 8000, "listen_workers": "tcp://192.0.2.1:1"}
    with (
        pytest.raises(CommandFailed, match="the server ended before it listened"),
        own_server(options, broken, log=log),
    ):
        pass
    assert "scripted was told to fail on port 0" in log.read_text(), "whatever its settings say, it is on a free one"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_nothing_is_left_of_a_server_whose_owner_is_killed(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cli", "chaos", "--own", "--backend", "scripted", "--faults", "raise"]
    temporary = {"TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    with subprocess.Popen(
        [*command, "--seconds", "300"], env=os.environ | temporary, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith(b"seed"):
            assert process.poll() is None
        process.send_signal(number)
        process.stdout.read()  # which the server and its workers have open, too
    assert list(tmp_path.iterdir()) == []
