"""An owned server ends with the process that started it, and reports that it cannot be started."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from cli.client.owned_server import owned_server
from cli.config.errors import CommandFailed
from cli.config.model import ChosenModel
from cli.config.settings import Settings
from gateway.fleet.launch import WorkerLaunch


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


def no_workers(settings: Settings, model: ChosenModel) -> Sequence[WorkerLaunch]:
    return ()


def test_the_directory_of_the_prefix_tier_is_open_while_the_server_runs(tmp_path: Path) -> None:
    path = tmp_path / "tier"
    options = {"backend": "scripted", "prefix_cache_bytes": 1 << 20, "prefix_cache_dir": str(path)}

    def close_to_others() -> None:
        with (path / "users").open("rb") as users:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)

    with owned_server(options, no_workers), pytest.raises(BlockingIOError):
        close_to_others()
    close_to_others()


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
