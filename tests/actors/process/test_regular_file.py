"""Only regular files are opened, and nothing waits for another kind."""

import os
import stat
from pathlib import Path

import pytest

from actors.process.regular_file import NotRegularFile, open_regular
from actors.transport.keys import KeyFileError, read_key


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    link = tmp_path / "link"
    link.symlink_to(file)
    for path in (file, link):
        with open_regular(path) as stream:
            assert stream.read() == b"text"
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")


def test_a_pipe_a_folder_and_a_device_are_refused(tmp_path: Path) -> None:
    pipe, device = tmp_path / "pipe", tmp_path / "device"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    for path in (pipe, device, tmp_path):
        with pytest.raises(NotRegularFile, match="not a regular file"):
            open_regular(path)


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    before = os.stat_result((stat.S_IFREG, *[0] * 9))
    monkeypatch.setattr(Path, "stat", lambda self, **_: before)
    with pytest.raises(NotRegularFile):
        open_regular(pipe)


def test_a_pipe_as_a_key_file_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "key"
    os.mkfifo(pipe, 0o600)
    with pytest.raises(KeyFileError, match="not a regular file"):
        read_key(pipe)
