"""The directory of a store: who uses it, how many bytes it has, and what is evicted.

The files of blocks are its index: any process reads them, and each change is one rename or removal. The bytes are
counted in a file, under a lock that is held for a change only, and are counted before they are written. So a process
that is killed at any point leaves at most a temporary file, which the next one removes, and a count that is too high,
which the next eviction corrects. A directory that somebody removes is made again by the next change.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import secrets
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from workers.prefix_store import pins
from workers.prefix_store.block import KEY_BYTES, RowBlock
from workers.prefix_store.entry import PAGE, header, stored_size
from workers.prefix_store.eviction import StoredBlock, deferred, evict_at, eviction_order
from workers.prefix_store.shared_directory import machine, open_shared, remove_if_unused, unusable

FREE_SHARE = 0.05
"""Share of the file system that stays free: blocks give way to others' files as well."""
SLACK_SHARE = 1 / 8
"""Share of the bytes that an eviction frees beyond what is needed, so that not every write looks at all files."""
_COUNT = struct.Struct("<Q")
_NAME = 4 * KEY_BYTES + 1
_PARTIAL = "partial-"
_PINS = "pins"
_LOCK = "lock"
MEMORY = Path("/dev/shm")
"""A file system in memory."""


def default_directory() -> Path:
    """Return the directory in memory that all servers of this user share; on disk where no file system is in memory."""
    base = MEMORY if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    return base / f"baton-prefixes-{os.getuid()}"


def unused_bytes(path: Path, max_bytes: int) -> int:
    """Return the bytes by which the files of a directory may still grow."""
    return max(0, max_bytes - stored_bytes(path))


def stored_bytes(path: Path) -> int:
    """Return the bytes that the files of a directory have, by its count; 0 if it is not there, or another user's."""
    try:
        with (path / _LOCK).open("rb") as file:
            data = file.read(_COUNT.size)
    except OSError:
        return 0
    return int(_COUNT.unpack(data)[0]) if len(data) == _COUNT.size else 0


class StoreDirectory:
    """An open directory. While one is open, no process removes it."""

    def __init__(self, path: Path, max_bytes: int, *, temporary: bool) -> None:
        """`temporary` removes the directory when no process has it open any more.

        Raises `DirectoryUnusable`.
        """
        self.path = path
        self._prefix = f"{path}{os.sep}"
        self._partials = map(f"{secrets.token_hex(8)}-{{}}".format, itertools.count())
        """Names of temporary files, which no other process has."""
        self._max_bytes = max_bytes
        self._temporary = temporary
        self._users, self._lock = _open(path)
        status = os.fstat(self._users)
        self.identity = f"{machine()} {status.st_dev} {status.st_ino}"
        """Equal for all that have this directory open, and for no others."""

    def close(self) -> None:
        """Close the directory, and remove it if it is temporary and nobody else has it open."""
        os.close(self._lock)
        if self._temporary:
            remove_if_unused(self.path, self._users)
        os.close(self._users)

    @property
    def max_bytes(self) -> int:
        """The bytes that it may have."""
        return self._max_bytes

    @property
    def used_bytes(self) -> int:
        """The bytes that are counted now."""
        return self._counted()

    def file(self, block: RowBlock) -> Path:
        """Return the path of a block's file, whether it is there or not."""
        return self.path / block.name

    def has(self, block: RowBlock) -> bool:
        """Return whether a block's file is there; false if its disk fails, where `Path.exists` raises most errors
        before Python 3.14."""
        return os.path.exists(self._prefix + block.name)

    def tidy(self) -> None:
        """Remove what killed processes have left, count the bytes anew, and evict what is beyond the bound."""
        with self._locked():
            self._remove_abandoned()
            self._evict(0)

    def write(self, block: RowBlock, rows: bytes | memoryview) -> bool:
        """Write a block, evicting others for it. False if it does not fit, is there already, or is lost with the
        directory, which somebody has removed meanwhile.

        Raises `OSError`, with ENOSPC if the file system is about to be full.
        """
        size = stored_size(len(rows))
        if size > self._max_bytes or self.has(block):
            return False
        with self._locked():
            if self._counted() + size > self._max_bytes and not self._evict(size):
                return False
            self._make_free(size)
            partial, descriptor = self._create_partial(size)
        written = False
        try:
            _write_all(descriptor, [header(block, rows), rows])
            with self._locked(), contextlib.suppress(FileNotFoundError):  # it was removed with the directory
                if not self.has(block):  # no other process has just written it
                    os.rename(partial, self._prefix + block.name)
                    written = True
        finally:
            try:
                if not written:
                    self._drop_partial(partial, size)
            finally:
                os.close(descriptor)
        return written

    def touch(self, blocks: Sequence[RowBlock]) -> None:
        """Note that blocks were reused."""
        now = time.time()
        for file in map(self.file, blocks):
            with contextlib.suppress(FileNotFoundError):  # it was evicted
                until = deferred(file.stat().st_mtime, now)
                os.utime(file, (until, until))

    def pin(self, owner: str, blocks: Sequence[RowBlock], rows: int, seconds: float) -> None:
        """Keep the first blocks of a prefix, each with so many bytes of rows, for some time: those that the bound of
        the owner allows. Blocks that are not there may be written later."""
        now, size = time.time(), stored_size(rows)
        count = pins.most_pinned(self._max_bytes, size)
        with self._locked():
            pinned = pins.pin(
                self._pins(), pins.owner_key(owner), blocks[:count], size, now + min(seconds, pins.MAX_PIN_S), now
            )
            self._set_pins(pins.within(pinned, self._max_bytes))

    def remove(self, block: RowBlock) -> None:
        """Remove a block, if it is there."""
        file = self.file(block)
        with self._locked(), contextlib.suppress(FileNotFoundError):
            size = _rounded(file.stat().st_size)
            file.unlink()
            self._count(-size)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock. Raises `DirectoryUnusable` if the directory was removed and cannot be made again."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        if not _is_at(self._lock, self.path / _LOCK):  # somebody has removed it: others have another lock from now on
            self._open_again()
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            if os.fstat(self._lock).st_size != _COUNT.size:  # it is new, or damaged
                self._evict(0)
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _open_again(self) -> None:
        users, lock = _open(self.path)
        for before in (self._users, self._lock):
            os.close(before)
        self._users, self._lock = users, lock

    def _counted(self) -> int:
        data = os.pread(self._lock, _COUNT.size, 0)
        return int(_COUNT.unpack(data)[0]) if len(data) == _COUNT.size else 0

    def _set_count(self, count: int) -> None:
        os.pwrite(self._lock, _COUNT.pack(max(count, 0)), 0)

    def _count(self, change: int) -> None:
        self._set_count(self._counted() + change)

    def _pins(self) -> list[pins.PinnedBlock]:
        try:
            return pins.decode((self.path / _PINS).read_bytes())
        except FileNotFoundError:
            return []

    def _pinned(self) -> set[str]:
        """Return the keys of the blocks that are pinned now."""
        now = time.time()
        return {each.key.hex() for each in self._pins() if pins.is_live(each, now)}

    def _set_pins(self, pinned: Sequence[pins.PinnedBlock]) -> None:
        """Replace the file of pins whole: a process that is killed meanwhile, or a full disk, leaves those before."""
        new = self.path / f"{_PINS}-new"
        try:
            new.write_bytes(pins.encode(pinned))
            new.replace(self.path / _PINS)
        except OSError:
            new.unlink(missing_ok=True)
            raise

    def _make_free(self, size: int) -> None:
        """Evict blocks if the file system is about to be full. Raises `OSError` if that is not enough."""
        if (lacking := self._lacking(size)) > 0:
            self._give_way(lacking)
            if self._lacking(size) > 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def _lacking(self, size: int) -> int:
        """Return the bytes that the file system lacks for a file of so many; 0 or less if it has them."""
        system = os.statvfs(self.path)
        return size + int((FREE_SHARE * system.f_blocks - system.f_bavail) * system.f_frsize)

    def _give_way(self, lacking: int) -> None:
        """Evict blocks of so many bytes and some more, none of which is pinned; none at all if they are too few."""
        entries, others = self._scan()
        pinned = self._pinned()
        if sum(entry.size for entry in entries.values() if entry.key not in pinned) < lacking:
            return
        total = sum(entry.size for entry in entries.values()) + others
        self._set_count(self._evict_to(int(total * (1 - SLACK_SHARE)) - lacking, entries, total, pinned))

    def _create_partial(self, size: int) -> tuple[str, int]:
        """Create a temporary file, locked as long as this process writes it, whose name counts its bytes."""
        self._count(size)
        name = f"{self._prefix}{_PARTIAL}{size}-{next(self._partials)}"
        try:
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            self._count(-size)
            raise
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return name, descriptor

    def _drop_partial(self, partial: str, size: int) -> None:
        with self._locked(), contextlib.suppress(FileNotFoundError):  # the directory was removed
            os.unlink(partial)
            self._count(-size)

    def _remove_abandoned(self) -> None:
        for partial in self.path.glob(f"{_PARTIAL}*"):
            with contextlib.suppress(BlockingIOError), partial.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                partial.unlink()

    def _evict(self, size: int) -> bool:
        """Evict blocks until `size` bytes more fit into the bound, and correct the count. False if they cannot.

        Pinned blocks stay, unless they alone are beyond the bound, as that of a process with a lower one.
        """
        entries, others = self._scan()
        total = sum(entry.size for entry in entries.values()) + others
        if total + size > self._max_bytes:
            most = int(self._max_bytes * (1 - SLACK_SHARE)) - size
            total = self._evict_to(most, entries, total, self._pinned())
            if total + size > self._max_bytes:
                total = self._evict_to(most, entries, total, set())
        self._set_count(total)
        return total + size <= self._max_bytes

    def _evict_to(self, most: int, entries: dict[str, StoredBlock], total: int, pinned: set[str]) -> int:
        """Evict blocks, which are removed from `entries`, until `most` bytes are left. Return what is left."""
        for entry in eviction_order(entries, pinned):
            if total <= most:
                break
            with contextlib.suppress(FileNotFoundError):
                (self.path / entry.name).unlink()
            del entries[entry.key]
            total -= entry.size
        return total

    def _scan(self) -> tuple[dict[str, StoredBlock], int]:
        """Return the blocks by their keys, and the bytes of temporary files."""
        now = time.time()
        entries: dict[str, StoredBlock] = {}
        others = 0
        with os.scandir(self.path) as files:
            for file in files:
                if file.name.startswith(_PARTIAL):
                    others += _partial_size(file)
                elif len(file.name) == _NAME:
                    with contextlib.suppress(FileNotFoundError):
                        status = file.stat(follow_symlinks=False)
                        entry = StoredBlock(file.name, _rounded(status.st_size), evict_at(status.st_mtime, now))
                        entries[entry.key] = entry
        return entries, others


def _open(path: Path) -> tuple[int, int]:
    """Make the directory if necessary, and open its file of users and its lock. Raises `DirectoryUnusable`."""
    users = open_shared(path)
    try:
        return users, os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        os.close(users)
        raise unusable(path, error) from error


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is the one at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _partial_size(file: os.DirEntry[str]) -> int:
    """Return the bytes that a temporary file is going to have; those that it has by now if another version wrote it."""
    size = file.name.removeprefix(_PARTIAL).partition("-")[0]
    if size.isdecimal():
        return int(size)
    try:
        return _rounded(file.stat(follow_symlinks=False).st_size)
    except FileNotFoundError:
        return 0


def _rounded(size: int) -> int:
    return -(-size // PAGE) * PAGE


def _write_all(descriptor: int, parts: list[bytes | memoryview]) -> None:
    for part in parts:
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
