"""The allow-list: who was added is on it, what is no key admits nobody, and it is read only when it has changed."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from actors.transport import allow_list
from actors.transport.allow_list import AllowList, Listed, WatchedList
from actors.transport.keys import KEY_FILE_BYTES, KeyFileError, from_z85, make_gateway_key, to_z85


def new_key() -> str:
    return from_z85(zmq.curve_keypair()[0].decode())


OTHER = new_key()


def test_the_list_has_who_was_added_until_removed(tmp_path: Path) -> None:
    listed = AllowList(tmp_path / "gateway")
    assert listed.read() == Listed()
    make_gateway_key(tmp_path / "gateway")
    assert stat.S_IMODE((tmp_path / "gateway").stat().st_mode) == 0o700
    listed.add("gpu1", OTHER)
    assert listed.read() == Listed({to_z85(OTHER): "gpu1"})
    with pytest.raises(KeyFileError, match="the key of gpu1"):
        listed.add("gpu2", OTHER)
    with pytest.raises(KeyFileError, match="exists"):
        listed.add("gpu1", new_key())
    listed.remove("gpu1")
    assert listed.read() == Listed()
    with pytest.raises(KeyFileError, match="no worker 'gpu1'"):
        listed.remove("gpu1")


def spoil(folder: Path, name: str, text: bytes) -> None:
    (folder / "workers" / f"{name}.pub").write_bytes(text)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("half", OTHER[:32].encode(), "half.pub: a key has 64 hexadecimal digits"),
        ("empty", b"", "empty.pub: a key has 64 hexadecimal digits"),
        ("garbage", b"\xff" * 64, "garbage.pub: a key has 64 hexadecimal digits"),
        ("two", f"{OTHER}\n{OTHER}\n".encode(), "two.pub: a key has 64 hexadecimal digits"),
        ("gpu 2", OTHER.encode(), "'gpu 2' is not a valid worker name"),
    ],
    ids=["half", "empty", "garbage", "two", "name"],  # not the keys, which are new in each process
)
def test_a_file_that_is_no_key_admits_nobody_and_harms_no_other(
    tmp_path: Path, name: str, text: bytes, why: str
) -> None:
    listed = AllowList(tmp_path)
    good = new_key()
    listed.add("gpu1", good)
    spoil(tmp_path, name, text)
    found = listed.read()
    assert found.names == {to_z85(good): "gpu1"}
    assert list(found.refused) == [f"{name}.pub"]
    assert found.refused[f"{name}.pub"].startswith(why)


def test_one_key_under_two_names_is_the_first_ones(tmp_path: Path) -> None:
    listed = AllowList(tmp_path)
    listed.add("a", OTHER)
    spoil(tmp_path, "b", OTHER.encode())
    assert listed.read() == Listed({to_z85(OTHER): "a"}, {"b.pub": "b.pub has the key of a: each worker needs its own"})


def test_a_file_without_permission_admits_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = AllowList(tmp_path)
    listed.add("a", OTHER)
    monkeypatch.setattr(allow_list, "read_regular", raising(PermissionError(errno.EACCES, "Permission denied")))
    assert listed.read() == Listed({}, {"a.pub": "a.pub cannot be read: Permission denied"})


def test_what_is_no_file_of_a_key_harms_no_other(tmp_path: Path) -> None:
    listed = AllowList(tmp_path)
    listed.add("gpu1", OTHER)
    (listed.folder / "folder.pub").mkdir()
    spoil(tmp_path, "long", b"x" * (KEY_FILE_BYTES + 1))
    refused = {
        "folder.pub": "folder.pub cannot be read: it is not a regular file",
        "long.pub": f"long.pub cannot be read: it is over the bound of {KEY_FILE_BYTES} bytes",
    }
    assert listed.read() == Listed({to_z85(OTHER): "gpu1"}, refused)


def raising(error: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


class Count:
    """Counts the reads of a list's files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        parse = AllowList.parse

        def counted(source: AllowList, files: list[Path]) -> Listed:
            self.times += 1
            return parse(source, files)

        monkeypatch.setattr(AllowList, "parse", counted)


def test_it_is_read_again_only_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = AllowList(tmp_path)
    first, second = new_key(), new_key()
    source.add("a", first)
    watched, count = WatchedList(source), Count(monkeypatch)
    monkeypatch.setattr(allow_list, "RACY_S", -3600.0)  # as if all files had been there for long
    assert watched.look() is watched.look()
    assert count.times == 1
    os.utime(tmp_path / "workers" / "a.pub", ns=(0, 0))
    watched.look()
    assert count.times == 2
    spoil(tmp_path, "a", second.encode())
    assert watched.look() == Listed({to_z85(second): "a"})
    source.add("b", first)
    assert watched.look() == Listed({to_z85(second): "a", to_z85(first): "b"})
    source.remove("a")
    assert watched.look() == Listed({to_z85(first): "b"})
    assert watched.look() is watched.look()
    assert count.times == 6, "for each change, by any writer"


def test_what_has_changed_just_now_may_change_again_unseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = AllowList(tmp_path)
    source.add("a", OTHER)
    watched, count = WatchedList(source), Count(monkeypatch)
    monkeypatch.setattr(allow_list, "RACY_S", 3600.0)
    for _ in range(3):
        watched.look()
    assert count.times == 3


def test_a_system_that_cannot_read_it_locks_nobody_out_and_lets_nobody_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = AllowList(tmp_path)
    source.add("a", OTHER)
    watched, unseen = WatchedList(source), WatchedList(source)
    known = watched.look()
    spoil(tmp_path, "b", new_key().encode())
    monkeypatch.setattr(allow_list, "read_regular", raising(OSError(errno.EMFILE, "Too many open files")))
    spoiled = watched.look()
    assert spoiled.names == known.names
    assert "Too many open files" in spoiled.refused["workers"]
    assert unseen.look().names == {}
    monkeypatch.undo()
    assert sorted(watched.look().names.values()) == ["a", "b"]


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "-a", "a b", "é", "x" * 129])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    listed = AllowList(tmp_path)
    with pytest.raises(KeyFileError, match="is not a valid worker name"):
        listed.add(name, OTHER)
    with pytest.raises(KeyFileError, match="is not a valid worker name"):
        listed.remove(name)


def test_the_longest_name_and_the_longest_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allow_list, "MAX_ALLOWED", 1)
    listed = AllowList(tmp_path)
    listed.add("x" * 128, OTHER)
    with pytest.raises(KeyFileError, match="1 is the most"):
        listed.add("y", new_key())
    assert listed.read() == Listed({to_z85(OTHER): "x" * 128})
    for name in ("y", "z"):
        spoil(tmp_path, name, new_key().encode())
    why = "y.pub and those after it: 3 are too many, 1 is the most"
    assert listed.read() == Listed({to_z85(OTHER): "x" * 128}, {"y.pub": why})
