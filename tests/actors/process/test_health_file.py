"""The health file: written while its process is ready, at most once a second, and removed at the end."""

import os
import shutil
import socket
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from actors.process.health_file import MARK_S, HealthFile


def test_its_time_is_that_of_the_last_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    file = tmp_path / "health"
    made = HealthFile({}, file)
    assert not file.exists()
    made.ready()
    for elapsed, written in ((MARK_S / 2, False), (MARK_S / 2, True), (MARK_S - 0.01, False)):
        os.utime(file, (0, 0))
        now[0] += elapsed
        made.ready()
        assert (file.stat().st_mtime > 0) is written
    made.stopping()
    assert not file.exists()
    made.stopping()


def test_a_file_of_an_earlier_process_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "health"
    file.touch()
    HealthFile({}, file)
    assert not file.exists()
    file.mkdir()
    with pytest.raises(OSError, match="health"):
        HealthFile({}, file)


def test_a_file_that_cannot_be_written_is_logged_once_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    folder = tmp_path / "folder"
    made = HealthFile({}, folder / "health")

    def ready() -> None:
        made.ready()
        now[0] += MARK_S

    with capture_logs() as logged:
        ready()
        ready()
        folder.mkdir()
        ready()
        shutil.rmtree(folder)
        ready()
        folder.touch()
        made.stopping()
    problems = ["No such file or directory", "No such file or directory", "Not a directory"]
    assert [(each["event"], each["problem"]) for each in logged] == [
        ("health_file_not_written", problem) for problem in problems
    ]


def test_the_service_manager_is_notified_as_well(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        made = HealthFile({"NOTIFY_SOCKET": str(tmp_path / "notify")}, tmp_path / "health")
        made.ready()
        made.stopping()
        states = [receiver.recv(4096).split(b"\n")[0] for _ in range(2)]
    assert states == [b"READY=1", b"STOPPING=1"]
