"""Files of a checkpoint are read up to a bound, which holds at its edge, and are regular files."""

import json
import os
from pathlib import Path
from unittest import mock

import pytest

from workers.checkpoints.json_files import MAX_CONFIG_BYTES, CheckpointError, read_json, read_text


@pytest.mark.parametrize("most", [0, 1, 5, 1 << 16, MAX_CONFIG_BYTES])
def test_a_text_of_the_bound_is_read_and_one_byte_more_is_refused(tmp_path: Path, most: int) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"x" * most)
    assert read_text(file, most) == "x" * most
    file.write_bytes(b"x" * (most + 1))
    with pytest.raises(CheckpointError, match=rf"a\.txt: is larger than the bound of {most} bytes$"):
        read_text(file, most)


def test_json_of_the_bound_is_read_and_one_byte_more_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    rest = MAX_CONFIG_BYTES - len(json.dumps({"a": ""}))
    file.write_text(json.dumps({"a": "x" * rest}))
    assert len(read_json(file)["a"]) == rest
    file.write_text(json.dumps({"a": "x" * (rest + 1)}))
    with pytest.raises(CheckpointError, match=r"config\.json: is larger than the bound"):
        read_json(file)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff", "is not UTF-8"),
        (b"{", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"a": %s}' % (b"9" * 5000), "is not JSON"),
        (b"[]", "is not a JSON object"),
    ],
    ids=["utf-8", "truncated", "deep", "long-integer", "list"],
)
def test_what_is_no_json_object_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=problem):
        read_json(tmp_path / "a.json")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"a\.json: there is no such file$"):
        read_json(tmp_path / "a.json")
    with pytest.raises(CheckpointError, match=r"config\.json: there is no such file; a model is a directory"):
        read_json(tmp_path / "config.json")
    (tmp_path / "loop.json").symlink_to("loop.json")
    with pytest.raises(CheckpointError, match=r"loop\.json: cannot be read: Too many levels of symbolic links"):
        read_json(tmp_path / "loop.json")


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    """The hub's cache is links."""
    (tmp_path / "blob").write_text('{"a": 1}')
    (tmp_path / "config.json").symlink_to("blob")
    assert read_json(tmp_path / "config.json") == {"a": 1}


def test_a_fifo_that_takes_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    file, fifo = tmp_path / "a.json", tmp_path / "fifo"
    file.write_text("{}")
    os.mkfifo(fifo)
    seen = file.stat()
    fifo.rename(file)
    with mock.patch.object(Path, "stat", return_value=seen), pytest.raises(CheckpointError, match="not a regular file"):
        read_json(file)
