"""The store of a worker: changes are made behind its back, and none of its errors reaches it."""

import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.workers.prefix_store.test_directory import ROWS, SIZE, chain
from workers.prefix_store import directory as directories
from workers.prefix_store import store as module
from workers.prefix_store.store import QUEUED_BLOCKS, QUEUED_NOTES, PrefixStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PrefixStore]:
    one = PrefixStore(tmp_path / "store", 20 * SIZE)
    yield one
    one.close()


def test_a_block_is_held_at_once_and_read_when_it_is_written(store: PrefixStore, tmp_path: Path) -> None:
    one, two = chain(2)
    assert not store.holds(one)
    store.offer(one, ROWS)
    assert store.holds(one)
    store.settle()
    assert bytes(store.read(one, len(ROWS)) or b"") == ROWS
    assert (store.holds(two), store.read(two, len(ROWS)), store.failures) == (False, None, 0)
    assert store.used_bytes == SIZE
    other = PrefixStore(tmp_path / "store", 20 * SIZE)
    assert bytes(other.read(one, len(ROWS)) or b"") == ROWS
    other.discard(one)
    other.settle()
    assert not store.holds(one)
    other.close()


def test_a_damaged_block_is_removed_and_counted(store: PrefixStore) -> None:
    (block,) = chain(1)
    store.offer(block, ROWS)
    store.settle()
    file = store._directory.file(block)
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    with capture_logs() as logs:
        assert store.read(block, len(ROWS)) is None
    store.settle()
    assert [log["event"] for log in logs] == ["prefix_store_failed"]
    assert (store.failures, file.exists(), store.used_bytes) == (1, False, 0)
    store.offer(block, ROWS)
    store.settle()
    assert bytes(store.read(block, len(ROWS)) or b"") == ROWS


def test_no_more_blocks_wait_than_the_bound(store: PrefixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write, begun = threading.Event(), threading.Event()
    write = store._directory.write

    def slow(*arguments: Any) -> bool:
        begun.set()
        may_write.wait(30)
        return write(*arguments)

    monkeypatch.setattr(store._directory, "write", slow)
    blocks = chain(QUEUED_BLOCKS + 1)
    for block in blocks[:QUEUED_BLOCKS]:
        assert store.has_room()
        store.offer(block, ROWS)
        store.offer(block, ROWS)  # not taken again
    assert not begun.is_set(), "several are written at once"
    store.write_offered()
    assert begun.wait(30)
    assert not store.has_room()
    with pytest.raises(ValueError, match="wait already"):
        store.offer(blocks[-1], ROWS)
    may_write.set()
    assert store.has_room(30)
    store.settle()
    assert [store.holds(block) for block in blocks] == [True] * QUEUED_BLOCKS + [False]


def test_a_full_disk_turns_writes_off_for_some_time(store: PrefixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, three = chain(3)
    with capture_logs() as logs, monkeypatch.context() as patch:
        patch.setattr(directories, "FREE_SHARE", 1.0)
        store.offer(one, ROWS)
        store.settle()
        assert not store.can_write()
        store.offer(two, ROWS)  # another one that was on its way
        store.settle()
    assert [log["event"] for log in logs] == ["prefix_store_full"]
    assert (store.failures, store.holds(one), store.holds(two)) == (1, False, False)
    store._rests_until = 0.0
    assert store.can_write()
    store.offer(three, ROWS)
    store.settle()
    assert store.holds(three)


@pytest.mark.parametrize("gone", [("*",), ("lock",), ("users", "lock")], ids="-".join)
def test_a_directory_that_is_gone_costs_what_was_in_it_and_is_made_again(
    store: PrefixStore, tmp_path: Path, gone: tuple[str, ...]
) -> None:
    one, two = chain(2)
    store.offer(one, ROWS)
    store.settle()
    for file in (file for pattern in gone for file in (tmp_path / "store").glob(pattern)):
        file.unlink()
    if "*" in gone:
        os.rmdir(tmp_path / "store")
        assert store.read(one, len(ROWS)) is None
    left = store.holds(one)
    store.touch([one])
    store.offer(two, ROWS)
    store.settle()
    assert bytes(store.read(two, len(ROWS)) or b"") == ROWS
    assert (store.used_bytes, store.failures) == (SIZE * (1 + left), 0)
    other = directories.StoreDirectory(tmp_path / "store", 20 * SIZE, temporary=True)
    with other._locked(), pytest.raises(BlockingIOError):
        fcntl.flock(store._directory._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    other.close()
    assert store.holds(two), "it is one of the users again"


def test_a_directory_that_cannot_be_made_again_turns_writes_off_for_some_time(
    store: PrefixStore, tmp_path: Path
) -> None:
    one, two = chain(2)
    store.settle()
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "store").touch()
    with capture_logs() as logs:
        store.offer(one, ROWS)
        store.settle()
    assert [(log["event"], "not a directory" in log["text"]) for log in logs] == [("prefix_store_failed", True)]
    assert (store.can_write(), store.holds(one)) == (False, False)
    (tmp_path / "store").unlink()
    store._rests_until = 0.0
    store.offer(two, ROWS)
    store.settle()
    assert store.holds(two)


def test_a_lock_that_another_process_keeps_holds_up_neither_reads_nor_the_end(
    store: PrefixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = chain(2)
    store.offer(one, ROWS)
    store.settle()
    monkeypatch.setattr(module, "CLOSE_S", 0.01)
    other = directories.StoreDirectory(store._directory.path, 20 * SIZE, temporary=False)
    with other._locked():
        store.offer(two, ROWS)
        assert bytes(store.read(one, len(ROWS)) or b"") == ROWS
        store.close()
    store._thread.join(30)
    assert not store._thread.is_alive()
    other.close()


def test_a_disk_that_fails_is_one_without_blocks(store: PrefixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = chain(1)
    store.offer(block, ROWS)
    store.settle()
    name, status, opened = block.name, os.stat, Path.open

    def failing_stat(path: Any, **options: Any) -> os.stat_result:
        if name in str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return status(path, **options)

    def failing_open(path: Path, *arguments: Any, **options: Any) -> Any:
        if name in str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opened(path, *arguments, **options)

    with monkeypatch.context() as disk:
        disk.setattr(os, "stat", failing_stat)
        disk.setattr(Path, "open", failing_open)
        assert not store.holds(block)
        assert store.read(block, len(ROWS)) is None
    assert store.holds(block)


@pytest.mark.parametrize(("number", "kept"), [(errno.EMFILE, True), (errno.ENOMEM, True), (errno.EACCES, False)])
def test_what_this_process_lacks_damages_no_block(
    store: PrefixStore, monkeypatch: pytest.MonkeyPatch, number: int, kept: bool
) -> None:
    (block,) = chain(1)
    store.offer(block, ROWS)
    store.settle()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as lacking, capture_logs() as logs:
        lacking.setattr(Path, "open", fail)
        assert store.read(block, len(ROWS)) is None
    store.settle()
    assert [(log["event"], log["problem"]) for log in logs] == [
        ("prefix_store_failed", "cannot be read" if kept else "is damaged")
    ]
    assert (store.failures, store.holds(block), store.can_write()) == (1, kept, True)


def test_a_lock_that_another_process_keeps_lets_few_changes_wait(store: PrefixStore) -> None:
    (block,) = chain(1)
    store.settle()
    with store._directory._locked():
        other = PrefixStore(store._directory.path, 20 * SIZE)
        for _ in range(2 * QUEUED_NOTES):
            other.touch([block])
            other.pin("owner", [block], len(ROWS), 60.0)
        assert len(other._jobs) in (QUEUED_NOTES - 1, QUEUED_NOTES), "the first one may be under way"
        other.discard(block)
        assert not other.holds(block), "what must not be read is not dropped"
        other.offer(block, ROWS)
    other.settle()
    assert bytes(other.read(block, len(ROWS)) or b"") == ROWS
    other.close()


def test_a_block_that_waits_to_be_written_is_not_damaged(store: PrefixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = chain(1)
    may_write = threading.Event()
    write = store._directory.write

    def slow(*arguments: Any) -> bool:
        assert may_write.wait(30)
        return write(*arguments)

    monkeypatch.setattr(store._directory, "write", slow)
    store.offer(block, ROWS)
    assert store.holds(block)
    store.expect(1, [block], len(ROWS))
    with store._ahead._changed:
        assert store._ahead._changed.wait_for(lambda: not store._ahead._queue and not store._ahead._reading, 30)
    may_write.set()
    store.settle()
    assert bytes(store.read(block, len(ROWS)) or b"") == ROWS
    assert (store.failures, store.holds(block)) == (0, True)


def test_a_change_that_fails_for_any_reason_ends_no_others(store: PrefixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = chain(1)

    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    store.settle()
    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr(store._directory, "pin", broken)
        store.pin("owner", [block], len(ROWS), 60.0)
        store.settle()
    assert [log["event"] for log in logs] == ["prefix_store_failed"]
    assert (store.failures, store.can_write()) == (1, False)
    store._rests_until = 0.0
    store.offer(block, ROWS)
    store.settle()
    assert bytes(store.read(block, len(ROWS)) or b"") == ROWS
