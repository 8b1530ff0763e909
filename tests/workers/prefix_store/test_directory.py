"""The directory of a prefix store: within its bound at any point, with several users, wherever one is killed."""

import errno
import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from workers.prefix_store import directory as module
from workers.prefix_store.block import RowBlock, extend, root, rows_of_block
from workers.prefix_store.directory import StoreDirectory
from workers.prefix_store.entry import HEADER_BYTES, PAGE, read_entry, stored_size
from workers.prefix_store.eviction import MOST_AHEAD_S, REUSE_S
from workers.prefix_store.shared_directory import DirectoryUnusable, remove_unused

ROWS = b"rows" * 1000
SIZE = stored_size(len(ROWS))


def chain(count: int, seed: int = 0, rows: int = 16) -> list[RowBlock]:
    """The blocks of one sequence."""
    blocks: list[RowBlock] = []
    tokens = [(seed * 7919 + at) % 997 for at in range(count * rows)]
    extend(blocks, root("format", "tenant", rows), tokens, rows, count)
    return blocks


def held(path: Path) -> int:
    """Bytes of all files of blocks, finished or not."""
    return sum(-(-file.stat().st_size // PAGE) * PAGE for file in path.iterdir() if file.name not in ("lock", "users"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_keys_follow_from_format_tenant_and_all_tokens_so_far() -> None:
    first, second = chain(2)
    assert second.parent == first.key
    assert first.parent == root("format", "tenant", 16)
    others = [root("other", "tenant", 16), root("format", "another", 16), root("format", "tenant", 32)]
    assert len({first.parent, *others}) == 4
    assert chain(2, seed=1)[1].key != second.key
    assert chain(3)[:2] == [first, second], "a longer sequence has the same first blocks"


@pytest.mark.parametrize(("row_bytes", "rows"), [(1, 64), (16384, 64), (16385, 32), (32769, 16), (1 << 20, 16)])
def test_a_block_has_a_megabyte_or_the_fewest_rows(row_bytes: int, rows: int) -> None:
    assert rows_of_block(row_bytes) == rows


def test_what_is_written_is_read_and_nothing_else(path: Path) -> None:
    one, two = chain(2)
    directory = StoreDirectory(path, 10 * SIZE, temporary=False)
    assert directory.write(one, ROWS)
    assert not directory.write(one, ROWS), "it is there"
    assert directory.used_bytes == held(path) == SIZE
    assert bytes(read_entry(directory.file(one), one, bytearray(len(ROWS))) or b"") == ROWS
    assert read_entry(directory.file(two), two, bytearray(len(ROWS))) is None
    assert read_entry(directory.file(one), one, bytearray(len(ROWS) - 1)) is None, "rows of another size"
    assert read_entry(directory.file(one), two, bytearray(len(ROWS))) is None, "another's rows under this name"
    directory.remove(one)
    directory.remove(one)
    assert directory.used_bytes == held(path) == 0
    directory.close()


def test_damage_at_any_byte_is_a_miss(path: Path) -> None:
    (block,) = chain(1)
    directory = StoreDirectory(path, 10 * SIZE, temporary=False)
    rows = bytes(range(256))
    directory.write(block, rows)
    file, buffer = directory.file(block), bytearray(len(rows))
    sound = file.read_bytes()
    assert len(sound) == HEADER_BYTES + len(rows)
    for at in range(len(sound)):
        file.write_bytes(sound[:at] + bytes([sound[at] ^ (1 << at % 8)]) + sound[at + 1 :])
        assert read_entry(file, block, buffer) is None, at
        file.write_bytes(sound[:at])
        assert read_entry(file, block, buffer) is None, f"{at} bytes of it"
    file.write_bytes(sound + b"\0")
    assert read_entry(file, block, buffer) is None
    file.write_bytes(sound)
    assert bytes(read_entry(file, block, buffer) or b"") == rows
    directory.close()


def test_the_last_blocks_of_prefixes_that_were_not_reused_go_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLACK_SHARE", 0.0)
    directory = StoreDirectory(path, 8 * SIZE, temporary=False)
    old, new = chain(4, seed=1), chain(4, seed=2)
    for at, block in enumerate([*old, *new]):
        assert directory.write(block, ROWS)
        os.utime(directory.file(block), (1000 + at, 1000 + at))
    directory.touch(old[:2])
    assert directory.write(chain(1, seed=3)[0], ROWS)
    assert [directory.file(block).exists() for block in old] == [True, True, True, False], "the last of the oldest"
    assert all(directory.file(block).exists() for block in new)
    for seed in range(4, 9):
        assert directory.write(chain(1, seed=seed)[0], ROWS)
    assert [directory.file(block).exists() for block in old] == [True, True, False, False], "reused ones stay"
    assert not any(directory.file(block).exists() for block in new)
    assert directory.used_bytes == held(path) <= 8 * SIZE
    directory.close()


def test_a_block_that_cannot_fit_evicts_nothing(path: Path) -> None:
    directory = StoreDirectory(path, 2 * SIZE, temporary=False)
    one, two, three = chain(3)
    assert directory.write(one, ROWS)
    assert not directory.write(two, bytes(2 * SIZE))
    assert directory.file(one).exists()
    assert directory.write(two, bytes(SIZE - HEADER_BYTES))
    assert not directory.write(three, bytes(SIZE - HEADER_BYTES + 1)) or not directory.file(one).exists()
    assert held(path) <= 2 * SIZE
    directory.close()


def test_any_sequence_of_changes_stays_within_the_bound(path: Path) -> None:
    randomness = random.Random(7)
    most = 20 * SIZE
    directories = [StoreDirectory(path, most, temporary=False) for _ in range(2)]
    blocks = [block for seed in range(12) for block in chain(6, seed=seed)]
    for _ in range(1500):
        directory, block = randomness.choice(directories), randomness.choice(blocks)
        match randomness.randrange(10):
            case 0:
                directory.remove(block)
            case 1:
                directory.touch([block])
            case 2:
                directory.tidy()
            case _:
                directory.write(block, bytes(randomness.randrange(1, 3 * SIZE)))
        assert directory.used_bytes == held(path) <= most
    for directory in directories:
        directory.close()


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("point", range(12))
def test_a_process_that_is_killed_anywhere_leaves_a_valid_directory(
    path: Path, point: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed before the n-th call of the system that changes something, without any clean-up."""
    most = 3 * SIZE
    blocks = chain(4)
    before = StoreDirectory(path, most, temporary=False)
    for block in blocks[:2]:
        before.write(block, ROWS)
    before.close()
    left = point

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            if left <= 0:
                raise Killed
            left -= 1
            return call(*arguments, **options)

        return called

    doomed = StoreDirectory(path, most, temporary=False)
    with monkeypatch.context() as patch:
        for name in ("open", "write", "pwrite", "unlink", "rename"):
            patch.setattr(os, name, dying(getattr(os, name)))
        try:
            for block in blocks[2:]:
                doomed.write(block, ROWS)
        except Killed:
            pass
    for descriptor in (doomed._lock, doomed._users):
        os.close(descriptor)  # as the system does
    assert held(path) <= most
    after = StoreDirectory(path, most, temporary=False)
    after.tidy()
    assert after.used_bytes == held(path) <= most
    assert not list(path.glob("partial-*"))
    for block in blocks:
        rows = read_entry(after.file(block), block, bytearray(len(ROWS)))
        assert rows is None or bytes(rows) == ROWS
    assert after.write(chain(1, seed=9)[0], ROWS)
    after.close()


WRITER = """
import sys
from pathlib import Path
from tests.workers.prefix_store.test_directory import ROWS, SIZE, chain
from workers.prefix_store import directory as directories
directories.FREE_SHARE = 0.0  # as tests/conftest.py has it in the process of the tests
directory = directories.StoreDirectory(Path(sys.argv[1]), 20 * SIZE, temporary=False)
print("ready", flush=True)
seed = int(sys.argv[2])
while True:
    for block in chain(5, seed=seed):
        directory.write(block, ROWS)
    seed += 2
"""


def test_processes_share_a_directory_and_may_be_killed(path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(seed)], stdout=subprocess.PIPE)
        for seed in (1, 2)
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
        seen = 0
        deadline = time.monotonic() + 60
        while seen < 200 and time.monotonic() < deadline:
            names = {file for file in path.iterdir() if file.name not in ("lock", "users")}
            sizes = []
            for file in names:
                try:
                    sizes.append(-(-file.stat().st_size // PAGE) * PAGE)
                except FileNotFoundError:
                    continue
            seen += bool(sizes)
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
            assert writer.stdout is not None
            writer.stdout.close()
    assert [writer.returncode for writer in writers] == [-signal.SIGKILL] * 2, "neither has failed"
    assert seen == 200
    assert held(path) <= 20 * SIZE
    after = StoreDirectory(path, 20 * SIZE, temporary=False)
    after.tidy()
    assert after.used_bytes == held(path) <= 20 * SIZE
    after.close()


def test_a_file_that_another_process_writes_is_left_alone(path: Path) -> None:
    directory = StoreDirectory(path, 10 * SIZE, temporary=False)
    partial, descriptor = directory._create_partial(SIZE)
    directory.tidy()
    assert Path(partial).exists()
    assert directory.used_bytes == SIZE, "it counts, though nothing is written yet"
    os.close(descriptor)
    directory.tidy()
    assert not Path(partial).exists()
    assert directory.used_bytes == 0
    directory.close()


def test_files_of_another_version_are_no_blocks_of_this_one(path: Path) -> None:
    """Their names may be others; those of its temporary files count by their size, and go when it is killed."""
    directory = StoreDirectory(path, 4 * SIZE, temporary=False)
    (path / "index-of-version-9").write_bytes(bytes(SIZE))
    partial = path / "partial-v9-x"
    partial.write_bytes(bytes(SIZE))
    with partial.open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        directory.tidy()
        assert directory.used_bytes == SIZE
        for block in chain(3):
            directory.write(block, ROWS)
        assert directory.used_bytes == 4 * SIZE
        assert partial.exists()
    directory.tidy()
    assert not partial.exists()
    assert (path / "index-of-version-9").exists()
    assert directory.used_bytes == 3 * SIZE
    directory.close()


def test_a_full_file_system_is_an_error_and_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = chain(1)
    directory = StoreDirectory(path, 10 * SIZE, temporary=False)
    with monkeypatch.context() as patch:
        patch.setattr(module, "FREE_SHARE", 1.0)
        with pytest.raises(OSError, match="No space left") as refused:
            directory.write(block, ROWS)
        assert refused.value.errno == errno.ENOSPC

    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            directory.write(block, ROWS)
    assert directory.used_bytes == held(path) == 0
    assert directory.write(block, ROWS)
    directory.close()


@dataclass(frozen=True)
class Disk:
    """A file system of 1,000 pages, of which others have some."""

    path: Path
    others: int
    f_blocks: int = 1000
    f_frsize: int = PAGE

    @property
    def f_bavail(self) -> int:
        return self.f_blocks - self.others - held(self.path) // PAGE


@pytest.mark.parametrize(
    ("others", "left"), [(950 - 5, 4), (950 - 4, 3), (950 - 3, 2), (950 - 2, 1), (950 - 1, 0), (950, None)]
)
def test_blocks_give_way_on_a_file_system_that_is_about_to_be_full(
    path: Path, monkeypatch: pytest.MonkeyPatch, others: int, left: int | None
) -> None:
    """One more block of a page fits below 95 %; if even all blocks are too few, none is lost for it."""
    monkeypatch.setattr(module, "FREE_SHARE", 0.05)
    monkeypatch.setattr(module, "SLACK_SHARE", 0.0)
    directory = StoreDirectory(path, 100 * PAGE, temporary=False)
    blocks, (new,) = chain(4, seed=1), chain(1, seed=2)
    rows = bytes(PAGE - HEADER_BYTES)
    for at, block in enumerate(blocks):
        directory.write(block, rows)
        os.utime(directory.file(block), (1000 + at, 1000 + at))
    monkeypatch.setattr(os, "statvfs", lambda _: Disk(path, others))
    if left is None:
        with pytest.raises(OSError, match="No space left"):
            directory.write(new, rows)
        assert all(map(directory.has, blocks))
    else:
        assert directory.write(new, rows)
        assert [directory.has(block) for block in blocks] == [at < left for at in range(4)]
    assert directory.used_bytes == held(path)
    directory.close()


def test_no_pinned_block_gives_way_on_a_full_file_system(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FREE_SHARE", 0.05)
    directory = StoreDirectory(path, 100 * PAGE, temporary=False)
    rows = bytes(PAGE - HEADER_BYTES)
    pinned, (other,), (new,) = chain(2, seed=1), chain(1, seed=2), chain(1, seed=3)
    for block in (*pinned, other):
        directory.write(block, rows)
    directory.pin("a", pinned, len(rows), 300.0)
    for others, written in ((950 - 3 - 1, True), (950 - 3, False)):
        monkeypatch.setattr(os, "statvfs", lambda _, others=others: Disk(path, others))
        if written:
            assert directory.write(new, rows)
        else:
            with pytest.raises(OSError, match="No space left"):
                directory.write(other, rows)
        assert all(map(directory.has, pinned))
    directory.close()


def test_a_file_that_cannot_be_renamed_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = chain(1)
    directory = StoreDirectory(path, 10 * SIZE, temporary=False)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing(errno.EDQUOT))
        with pytest.raises(OSError, match=r"\[Errno"):
            directory.write(block, ROWS)
    assert directory.used_bytes == held(path) == 0
    directory.close()


def test_a_directory_that_is_removed_while_a_block_is_written_costs_that_block(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = chain(2)
    directory = StoreDirectory(path, 10 * SIZE, temporary=False)
    write = os.write

    def removing(descriptor: int, data: memoryview) -> int:
        shutil.rmtree(path, ignore_errors=True)
        return write(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", removing)
        assert not directory.write(one, ROWS)
    assert directory.used_bytes == held(path) == 0
    assert directory.write(two, ROWS)
    assert directory.used_bytes == held(path) == SIZE
    directory.close()


def test_a_count_that_is_damaged_is_made_anew(path: Path) -> None:
    directory = StoreDirectory(path, 3 * SIZE, temporary=False)
    for block in chain(3):
        directory.write(block, ROWS)
    os.truncate(path / "lock", 3)
    assert directory.write(chain(1, seed=1)[0], ROWS)
    assert directory.used_bytes == held(path) <= 3 * SIZE
    directory.close()


def test_reuses_defer_an_eviction_each_by_as_much_and_all_by_no_more_than_the_bound(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1e9
    monkeypatch.setattr(time, "time", lambda: now)
    directory = StoreDirectory(path, 100 * SIZE, temporary=False)
    (block,) = chain(1)
    directory.write(block, ROWS)
    os.utime(directory.file(block), (now, now))
    for reuses in range(1, 63):
        directory.touch([block])
        deferred = directory.file(block).stat().st_mtime - now
        assert deferred == min(reuses * REUSE_S, MOST_AHEAD_S)
    assert deferred == MOST_AHEAD_S
    now += 2 * MOST_AHEAD_S
    directory.touch([block])
    assert directory.file(block).stat().st_mtime == now + REUSE_S, "long ago is as if never"
    directory.close()


@pytest.mark.parametrize(("back", "stays"), [(2 * MOST_AHEAD_S, True), (2 * MOST_AHEAD_S + 1, False)])
def test_blocks_from_before_the_clock_was_set_back_go_first(
    path: Path, monkeypatch: pytest.MonkeyPatch, back: float, stays: bool
) -> None:
    """Otherwise they would stay for as long as the clock was wrong, and each new block would go for the next one."""
    now = 1e9
    monkeypatch.setattr(time, "time", lambda: now)
    monkeypatch.setattr(module, "SLACK_SHARE", 0.0)
    directory = StoreDirectory(path, 2 * SIZE, temporary=False)
    old, new, other = (chain(1, seed=seed)[0] for seed in range(3))
    for block in (old, new):
        directory.write(block, ROWS)
        os.utime(directory.file(block), (now, now))
        now -= back if block is old else 0.0
    directory.write(other, ROWS)
    assert (directory.file(old).exists(), directory.file(new).exists()) == (stays, not stays)
    os.utime(directory.file(other), (now + 1e8, now + 1e8))
    directory.touch([other])
    assert directory.file(other).stat().st_mtime == now + REUSE_S
    directory.close()


def test_a_temporary_directory_goes_with_its_last_user(path: Path) -> None:
    one, two = (StoreDirectory(path, 10 * SIZE, temporary=True) for _ in range(2))
    one.write(chain(1)[0], ROWS)
    one.close()
    assert path.exists()
    two.close()
    assert not path.exists()
    again = StoreDirectory(path, 10 * SIZE, temporary=False)
    again.write(chain(1)[0], ROWS)
    again.close()
    assert held(path) == SIZE, "one that was named stays"


def test_a_directory_of_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "file").touch()
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    for name, problem in (("open", "mode must be 0700"), ("file", "not a directory"), ("link", "not a directory")):
        with pytest.raises(DirectoryUnusable, match=problem):
            StoreDirectory(tmp_path / name, SIZE, temporary=False)


def test_a_directory_that_cannot_be_made_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "mkdir", failing(errno.ENOENT))  # as in /proc, or below a folder that was removed
    with pytest.raises(DirectoryUnusable, match="cannot be used: No such file"):
        StoreDirectory(tmp_path / "none", SIZE, temporary=False)


def failing(number: int) -> Callable[..., None]:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("name", ["users", "lock"])
def test_a_file_system_without_locks_or_room_refuses_and_leaks_no_descriptor(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    opened: list[int] = []
    system_open = os.open

    def recorded(file: Path, *arguments: Any) -> int:
        if name == "lock" and file == path / name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        opened.append(system_open(file, *arguments))
        return opened[-1]

    monkeypatch.setattr(os, "open", recorded)
    if name == "users":
        monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))
    with pytest.raises(DirectoryUnusable, match="cannot be used"):
        StoreDirectory(path, SIZE, temporary=False)
    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_who_opens_a_directory_while_it_is_removed_gets_a_whole_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of users goes last: until then the other waits for its lock, and what it opens afterwards stays."""
    one = StoreDirectory(path, 10 * SIZE, temporary=True)
    one.write(chain(1)[0], ROWS)
    removed: list[str] = []
    others: list[StoreDirectory] = []
    unlink, rmdir = Path.unlink, Path.rmdir

    def recorded(file: Path, **options: bool) -> None:
        unlink(file, **options)
        removed.append(file.name)

    def opened(folder: Path) -> None:
        others.append(StoreDirectory(path, 10 * SIZE, temporary=True))
        rmdir(folder)

    monkeypatch.setattr(Path, "unlink", recorded)
    monkeypatch.setattr(Path, "rmdir", opened)
    one.close()
    monkeypatch.undo()
    assert removed[-1] == "users"
    assert len(removed) == 3
    assert others[0].write(chain(1)[0], ROWS)
    assert others[0].used_bytes == held(path) == SIZE
    others[0].close()
    assert not path.exists()


def test_what_killed_processes_have_left_is_removed_unless_it_is_in_use(path: Path) -> None:
    remove_unused(path)
    left, other = (StoreDirectory(path, 10 * SIZE, temporary=True) for _ in range(2))
    left.write(chain(1)[0], ROWS)
    for descriptor in (left._lock, left._users):
        os.close(descriptor)  # as the system does for a process that is killed
    remove_unused(path)
    assert held(path) == SIZE, "another has it open"
    os.close(other._lock)
    os.close(other._users)
    path.chmod(0o755)
    remove_unused(path)
    assert path.exists(), "it may be somebody else's"
    path.chmod(0o700)
    remove_unused(path)
    assert not path.exists()


def test_a_place_where_no_directory_can_be_made_is_refused() -> None:
    """On Linux, `mkdir` in /proc fails as it does in a directory that was just removed."""
    with pytest.raises(DirectoryUnusable, match=r"^/proc/prefixes cannot be"):
        StoreDirectory(Path("/proc/prefixes"), SIZE, temporary=False)


def test_the_lock_is_held_for_a_change_only(path: Path) -> None:
    directory = StoreDirectory(path, 10 * SIZE, temporary=False)
    directory.write(chain(1)[0], ROWS)
    with (path / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    directory.close()
