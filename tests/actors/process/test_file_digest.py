from pathlib import Path
from typing import BinaryIO

import pytest

from actors.process.file_digest import FilesTooLarge, file_digest

NAMES = ("a", "b", "c")


def opened(file: Path) -> BinaryIO:
    return file.open("rb")


def digest(directory: Path, most: int = 100, copy_to: Path | None = None) -> str:
    return file_digest(directory, NAMES, 16, most, opened, copy_to)


def test_it_depends_on_the_names_and_contents_of_these_files_alone(tmp_path: Path) -> None:
    one, other, copy = tmp_path / "one", tmp_path / "other", tmp_path / "copy"
    for directory in (one, other, copy):
        directory.mkdir()
    (one / "a").write_bytes(b"x" * 5)
    (one / "ignored").write_bytes(b"y")
    (other / "b").write_bytes(b"x" * 5)
    assert digest(one, copy_to=copy) == digest(copy) != digest(other)
    assert [file.name for file in copy.iterdir()] == ["a"]
    (copy / "a").write_bytes(b"x" * 4)
    assert digest(copy) != digest(one)
    (copy / "a").write_bytes(b"x" * 5)
    (copy / "b").write_bytes(b"")
    assert digest(copy) != digest(one)
    assert len(digest(one)) == 32


def test_the_bound_holds_for_all_files_together(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 60)
    (tmp_path / "b").write_bytes(b"x" * 40)
    assert digest(tmp_path, 100)
    with pytest.raises(FilesTooLarge, match="more than 99 bytes"):
        digest(tmp_path, 99)
