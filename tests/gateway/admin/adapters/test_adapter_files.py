"""The files of adapters, which others may change while they are read."""

import errno
import os
import shutil
from pathlib import Path
from typing import BinaryIO

import pytest

from actors.process import file_digest
from actors.process.regular_file import open_beneath
from gateway.admin.adapters import adapter_files
from gateway.admin.adapters.adapter_files import AdapterFiles, AdapterPathRefused
from protocol.adapter_files import ADAPTER_FILES
from protocol.bounds import MAX_ADAPTER_BYTES

CONFIG, WEIGHTS = ADAPTER_FILES[:2]


def make_adapter(directory: Path, weights: bytes = b"weights") -> Path:
    directory.mkdir(parents=True)
    (directory / CONFIG).write_text("{}")
    (directory / WEIGHTS).write_bytes(weights)
    return directory


def copied(files: AdapterFiles, path: str) -> tuple[str, tuple[str, ...]]:
    return files.copy(files.find(path))


@pytest.mark.parametrize("swapped", ["file", "directory"])
def test_a_link_that_takes_a_files_place_after_the_check_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    adapter, secret = make_adapter(tmp_path / "lora/one"), make_adapter(tmp_path / "secret", b"secret")
    opened = open_beneath

    def swap(root: Path, relative: Path) -> BinaryIO:
        if relative.name == WEIGHTS:
            target = adapter if swapped == "directory" else adapter / WEIGHTS
            target.rename(tmp_path / "moved")
            target.symlink_to(secret if swapped == "directory" else secret / WEIGHTS)
        return opened(root, relative)

    monkeypatch.setattr(adapter_files, "open_beneath", swap)
    files = AdapterFiles([str(tmp_path / "lora")])
    with pytest.raises(AdapterPathRefused, match="cannot be read"):
        copied(files, "one")
    assert files._root is not None
    assert not list(files._root.iterdir())


@pytest.mark.parametrize("path", ["../secret", "one/../../secret", "out", "one\0", "/", "x" * 5000, "round"])
def test_paths_that_lead_out_are_refused_whether_or_not_they_exist(tmp_path: Path, path: str) -> None:
    make_adapter(tmp_path / "lora/one")
    make_adapter(tmp_path / "secret")
    (tmp_path / "lora/out").symlink_to(tmp_path / "secret")
    (tmp_path / "lora/round").symlink_to(tmp_path / "lora/round")
    with pytest.raises(AdapterPathRefused) as refused:
        AdapterFiles([str(tmp_path / "lora")]).find(path)
    assert not refused.value.missing


def test_links_within_the_folders_are_followed_and_a_fifo_is_refused(tmp_path: Path) -> None:
    real, other = make_adapter(tmp_path / "store/one"), make_adapter(tmp_path / "lora/two")
    (tmp_path / "lora/one").symlink_to(real)
    files = AdapterFiles([str(tmp_path / "lora"), str(tmp_path / "store")])
    assert copied(files, "one")[0] == copied(files, str(real))[0]
    (other / WEIGHTS).unlink()
    os.mkfifo(other / WEIGHTS)
    with pytest.raises(AdapterPathRefused, match="not a regular file"):
        copied(files, "two")


def test_more_bytes_than_the_bound_are_refused_before_they_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = make_adapter(tmp_path / "one")
    with (adapter / WEIGHTS).open("wb") as file:
        file.truncate(MAX_ADAPTER_BYTES)  # with the config it is too large; the file has no blocks
    monkeypatch.setattr(file_digest, "_PART_BYTES", 1)  # it would take hours
    files = AdapterFiles([str(tmp_path)])
    with pytest.raises(AdapterPathRefused, match=f"more than {MAX_ADAPTER_BYTES} bytes"):
        copied(files, "one")


def test_a_copy_stays_while_another_load_uses_it_and_rounds_leave_none(tmp_path: Path) -> None:
    make_adapter(tmp_path / "one")
    make_adapter(tmp_path / "two")
    files = AdapterFiles([str(tmp_path)])
    for _ in range(20):
        first, paths = copied(files, "one")
        second, _ = copied(files, "two")
        assert first == second
        files.release(first)
        assert files.remove(first) is None
        assert (Path(paths[0]) / WEIGHTS).exists(), "the second one uses it"
        files.release(second)
        gone = files.remove(second)
        assert gone is not None
        shutil.rmtree(gone)
        assert files._root is not None
        assert not list(files._root.iterdir())
    assert not files._held


def test_a_copy_that_is_not_whole_is_replaced(tmp_path: Path) -> None:
    make_adapter(tmp_path / "one")
    (tmp_path / "kept").mkdir()
    files = AdapterFiles([str(tmp_path)], tmp_path / "kept")
    digest, paths = copied(files, "one")
    (Path(paths[0]) / WEIGHTS).write_bytes(b"")  # as after a power failure
    assert copied(files, "one") == (digest, paths)
    assert (Path(paths[0]) / WEIGHTS).read_bytes() == b"weights"
    assert [each.name for each in (tmp_path / "kept").iterdir()] == [digest]


def test_a_copy_that_has_no_room_may_be_made_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_adapter(tmp_path / "one")
    (tmp_path / "kept").mkdir()
    files = AdapterFiles([str(tmp_path)], tmp_path / "kept")

    def full(*_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(adapter_files, "file_digest", full)
        with pytest.raises(AdapterPathRefused, match=f"cannot be copied to {tmp_path}/kept: No space left") as refused:
            copied(files, "one")
    assert (refused.value.unavailable, list((tmp_path / "kept").iterdir())) == (True, [])
    (tmp_path / "kept").rmdir()
    with pytest.raises(AdapterPathRefused, match=f"cannot be copied to {tmp_path}/kept: No such file") as refused:
        copied(files, "one")
    assert refused.value.unavailable
