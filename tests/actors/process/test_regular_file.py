"""Only regular files are opened, and nothing waits for another kind."""

import os
import stat
from pathlib import Path

import pytest

from actors.process.regular_file import FileTooLarge, NotRegularFile, open_regular, read_regular
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


def test_a_file_is_read_up_to_a_bound(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    sizes: list[int] = []
    assert read_regular(file, 4, lambda status: sizes.append(status.st_size)) == b"text"
    assert sizes == [4]
    with pytest.raises(FileTooLarge, match="it is over the bound of 3 bytes"):
        read_regular(file, 3)
    with pytest.raises(FileTooLarge):
        read_regular(Path("/proc/self/maps"), 3)  # whose size is stated as 0
    with pytest.raises(NotRegularFile):
        read_regular(tmp_path, 3)


def test_a_file_is_not_read_if_its_check_fails(tmp_path: Path) -> None:
    def refuse(status: os.stat_result) -> None:
        raise ValueError(stat.S_IMODE(status.st_mode))

    file = tmp_path / "file"
    file.touch(0o640)
    with pytest.raises(ValueError, match=str(0o640)):
        read_regular(file, 4, refuse)


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
