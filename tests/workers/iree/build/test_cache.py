"""Compiled graphs on disk: bounds, damage, races, a full disk, and one that cannot be written."""

import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from workers.iree.build import cache as cache_module
from workers.iree.build.cache import IN_USE_S, MAX_BYTES, STALE_S, CacheError, GraphCache, _locked

ENTRY = 64
"""Bytes of a checksum, which count."""


class Making:
    """Writes modules of a size and counts how often."""

    def __init__(self, size: int = 1000) -> None:
        self.size = size
        self.times = 0

    def __call__(self, file: Path) -> None:
        self.times += 1
        file.write_bytes(b"m" * self.size)


def entries(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir() if entry.is_dir()}


def age(folder: Path, *digests: str) -> None:
    """As if they had been used longest ago, the first one first."""
    for at, digest in enumerate(digests):
        then = time.time() - 10 * IN_USE_S + at
        os.utime(folder / digest, (then, then))


def test_made_once_and_found(tmp_path: Path) -> None:
    make = Making()
    file = GraphCache(tmp_path).get("a", make)
    other = GraphCache(tmp_path)
    assert other.get("a", make) == other.find("a") == file
    assert make.times == 1
    assert other.find("b") is None


@pytest.mark.parametrize("damage", ["truncated", "changed", "gone", "no checksum"])
def test_a_damaged_entry_is_made_again(tmp_path: Path, damage: str) -> None:
    cache, make = GraphCache(tmp_path), Making()
    file = cache.get("a", make)
    whole = file.read_bytes()
    if damage == "truncated":
        file.write_bytes(whole[:-1])
    elif damage == "changed":
        file.write_bytes(whole[:100] + b"\xff" + whole[101:])
    elif damage == "gone":
        file.unlink()
    else:
        (file.parent / "sha256").unlink()
    assert cache.find("a") is None
    assert cache.get("a", make).read_bytes() == whole
    assert make.times == 2


def test_a_key_leads_to_its_entry_as_long_as_that_is_whole(tmp_path: Path) -> None:
    cache = GraphCache(tmp_path)
    file = cache.get("a", Making())
    assert cache.by_key("k") is None
    cache.remember("k", "a")
    assert cache.by_key("k") == file
    (tmp_path / "k.key").write_text("../a")
    assert cache.by_key("k") is None
    cache.remember("k", "a")
    file.unlink()
    assert cache.by_key("k") is None


def test_leftovers_of_a_dead_process_are_removed(tmp_path: Path) -> None:
    (tmp_path / "a.abcdef.tmp").mkdir()
    GraphCache(tmp_path).get("a", Making())
    assert entries(tmp_path) == {"a"}


def test_what_was_never_finished_is_removed_once_nobody_can_be_at_it(tmp_path: Path) -> None:
    cache = GraphCache(tmp_path)
    (tmp_path / "b.abcdef.tmp").mkdir()
    (tmp_path / "b.abcdef.tmp" / "module.vmfb").write_bytes(b"half")
    (tmp_path / "k.abcdef.tmp").touch()
    for name, seconds in (("b.abcdef.tmp", STALE_S), ("k.abcdef.tmp", STALE_S)):
        os.utime(tmp_path / name, (time.time() - seconds,) * 2)
    (tmp_path / "c.abcdef.tmp").mkdir()
    os.utime(tmp_path / "c.abcdef.tmp", (time.time() - STALE_S + 60,) * 2)
    cache.get("a", Making())
    assert [left.name for left in tmp_path.glob("*.tmp")] == ["c.abcdef.tmp"]


def test_two_at_once_make_one(tmp_path: Path) -> None:
    make = Making()
    files: list[Path] = []
    threads = [threading.Thread(target=lambda: files.append(GraphCache(tmp_path).get("a", make))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert files[0] == files[1]
    assert make.times == 1


def test_at_the_bound_nothing_goes_and_beyond_it_what_was_used_longest_ago(tmp_path: Path) -> None:
    cache = GraphCache(tmp_path, max_bytes=3 * (1000 + ENTRY))
    for digest in "abc":
        cache.get(digest, Making())
    age(tmp_path, "a", "b", "c")
    cache.find("a")  # now in use
    assert entries(tmp_path) == {"a", "b", "c"}
    cache.get("d", Making(1001))
    assert entries(tmp_path) == {"a", "d"}  # one byte too much costs two entries
    assert cache.find("b") is None
    assert not (tmp_path / "b.lock").exists()


def test_what_is_about_to_be_mapped_stays_whatever_the_bound(tmp_path: Path) -> None:
    cache = GraphCache(tmp_path, max_bytes=1)
    first = cache.get("a", Making())
    assert cache.get("b", Making()).exists()
    assert first.exists()
    age(tmp_path, "a", "b")
    cache.get("c", Making())
    assert entries(tmp_path) == {"c"}


def test_what_a_wrong_clock_stamped_is_not_kept_for_ever(tmp_path: Path) -> None:
    cache = GraphCache(tmp_path, max_bytes=2 * (1000 + ENTRY))
    for digest in "ab":
        cache.get(digest, Making())
    (tmp_path / "c.abcdef.tmp").mkdir()
    age(tmp_path, "a")
    for name in ("b", "c.abcdef.tmp"):
        os.utime(tmp_path / name, (time.time() + 10 * STALE_S,) * 2)
    cache.get("d", Making())
    assert entries(tmp_path) == {"a", "d"}


def test_what_is_made_anew_meanwhile_is_not_removed(tmp_path: Path) -> None:
    cache = GraphCache(tmp_path, max_bytes=1)
    cache.get("a", Making())
    age(tmp_path, "a")
    with _locked(tmp_path / "a.lock"):
        cache.get("b", Making())
    assert entries(tmp_path) == {"a", "b"}
    cache.get("c", Making())
    assert "a" not in entries(tmp_path)


def test_a_lock_that_was_removed_while_somebody_waited_for_it_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He would have it together with the next one, who finds no file and makes another."""
    lock, real, waits = tmp_path / "a.lock", fcntl.flock, [True]

    def flock(stream: IO[str], how: int) -> None:
        if waits:
            waits.clear()
            lock.unlink()
        real(stream, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with _locked(lock) as ours, _locked(lock, wait=False) as also:
        assert (ours, also) == (True, False)


def test_keys_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "MAX_KEYS", 2)
    cache = GraphCache(tmp_path, MAX_BYTES)
    for at, key in enumerate("klm"):
        cache.remember(key, "a")
        os.utime(tmp_path / f"{key}.key", (at, at))
    cache.get("a", Making())
    assert sorted(file.name for file in tmp_path.glob("*.key")) == ["l.key", "m.key"]


def _no_room(file: Path) -> None:
    file.write_bytes(b"half")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_a_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match=r"cannot keep a compiled graph: No space left on device; free some space"):
        GraphCache(tmp_path).get("a", _no_room)
    assert entries(tmp_path) == set()


def test_a_defect_is_not_called_a_full_disk(tmp_path: Path) -> None:
    def fail(_: Path) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    with pytest.raises(OSError, match="Bad file descriptor"):
        GraphCache(tmp_path).get("a", fail)


@pytest.mark.parametrize("call", ["find", "by_key"])
def test_a_cache_that_cannot_be_written_serves_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    cache = GraphCache(tmp_path)
    file = cache.get("a", Making())
    cache.remember("k", "a")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", refuse)
    find: Callable[[], Path | None] = (lambda: cache.find("a")) if call == "find" else (lambda: cache.by_key("k"))
    assert find() == file


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match="Not a directory"):
        GraphCache(tmp_path / "file" / "graphs")


def test_what_everybody_can_write_to_is_not_run(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        GraphCache(tmp_path / "graphs")
        GraphCache(tmp_path / "graphs")
    finally:
        os.umask(before)
    (tmp_path / "graphs").chmod(0o1777)
    with pytest.raises(CacheError, match="everybody can write to it"):
        GraphCache(tmp_path / "graphs")
