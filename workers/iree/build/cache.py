"""A cache of compiled graphs on disk: bounded, shared by processes, repaired when damaged, least recently used first
out."""

import errno
import fcntl
import hashlib
import math
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from workers.errors import LoadRefused

MAX_BYTES = 1 << 30
"""Some thousand graphs; those of one model are a dozen, of 0.1 to 0.3 MB each."""
MAX_KEYS = 16384
IN_USE_S = 60.0
"""Seconds after its last use in which an entry is kept even beyond the bound: its file may not be mapped yet."""
STALE_S = 3600.0
"""Seconds after which an unfinished entry may have been left by a process that died, which its lock tells."""
_SOLVABLE = {errno.ENOTDIR, errno.EEXIST, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}


class CacheError(LoadRefused):
    """Raised when a compiled graph cannot be kept on disk: no room, or too few or too many permissions."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(f"{folder}: cannot keep a compiled graph: {reason}; free some space or set --cache-dir")


class GraphCache:
    """A folder of entries `DIGEST/` with a module and its checksum, renamed into place whole.

    `KEY.key` files name the entry that an earlier run made of the same inputs, so that it need not be traced again.
    Threads and processes may share a folder.
    """

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        """Raises `CacheError`."""
        self._folder = folder
        self._max_bytes = max_bytes
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            mode = folder.stat().st_mode
        except OSError as error:
            raise CacheError(folder, error.strerror or str(error)) from error
        if mode & stat.S_IWOTH:
            raise CacheError(folder, "everybody can write to it, and what is in it runs here as code")

    def by_key(self, key: str) -> Path | None:
        """Return the module that was remembered under a key."""
        try:
            digest = self._key(key).read_text()
        except OSError:
            return None
        return self.find(digest) if digest.isalnum() else None

    def remember(self, key: str, digest: str) -> None:
        """Have `by_key` find an entry by a key. Raises `CacheError`."""
        with _as_cache_error(self._folder):
            handle, temporary = tempfile.mkstemp(prefix=f"{key}.", suffix=".tmp", dir=self._folder)
            try:
                with os.fdopen(handle, "w") as out:
                    out.write(digest)
                os.replace(temporary, self._key(key))
            finally:
                Path(temporary).unlink(missing_ok=True)

    def find(self, digest: str) -> Path | None:
        """Return the entry's module if it is whole: a truncated file would be mapped and crash the process later."""
        entry = self._folder / digest
        module = entry / "module.vmfb"
        try:
            if (entry / "sha256").read_text() != _checksum(module):
                return None
        except OSError:
            return None
        try:
            os.utime(entry)
        except OSError:
            pass  # a read-only cache serves what it has; nothing is evicted from it either
        return module

    def get(self, digest: str, make: Callable[[Path], object]) -> Path:
        """Return the entry's module, made by `make(file)` if it is missing or damaged; one process makes it.

        Raises `CacheError`, and what `make` raises.
        """
        if (file := self.find(digest)) is not None:
            return file
        with _as_cache_error(self._folder), _locked(self._folder / f"{digest}.lock"):
            # Another process may have made it while this one waited.
            if (file := self.find(digest)) is None:
                self._make(digest, make)
                file = self.find(digest)
        if file is None:
            raise CacheError(self._folder, f"{digest} is damaged just after it was written")
        try:
            self._trim(digest)
        except CacheError as error:  # another user's entry costs room, not this module
            structlog.get_logger().warning("graphs_not_removed", reason=str(error))
        return file

    def _key(self, key: str) -> Path:
        return self._folder / f"{key}.key"

    def _make(self, digest: str, make: Callable[[Path], object]) -> None:
        entry = self._folder / digest
        shutil.rmtree(entry, ignore_errors=True)
        for left in self._folder.glob(f"{digest}.*.tmp"):  # of a process that died: the lock is ours
            shutil.rmtree(left, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{digest}.", suffix=".tmp", dir=self._folder))
        try:
            module = folder / "module.vmfb"
            make(module)
            (folder / "sha256").write_text(_checksum(module))
            folder.rename(entry)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _trim(self, newest: str) -> None:
        """Remove the entries used longest ago until the rest fit; one that another process makes or uses now stays."""
        with _as_cache_error(self._folder), _locked(self._folder / "trim.lock"):
            entries = [entry for entry in self._folder.iterdir() if entry.is_dir() and entry.suffix != ".tmp"]
            sizes = {entry: _size(entry) for entry in entries}
            total, now = sum(sizes.values()), time.time()
            idle = {entry: _idle(entry, now) for entry in entries}
            for entry in sorted(entries, key=lambda entry: -idle[entry]):
                if total <= self._max_bytes:
                    break
                if entry.name != newest and idle[entry] >= IN_USE_S and self._remove(entry):
                    total -= sizes[entry]
            keys = sorted(self._folder.glob("*.key"), key=lambda key: _idle(key, now))
            for key in keys[MAX_KEYS:]:
                key.unlink(missing_ok=True)
            for left in self._folder.glob("*.tmp"):
                if _idle(left, now) >= STALE_S:
                    self._discard(left)

    def _discard(self, left: Path) -> None:
        """Remove an entry or a key that a process had begun when it died. Whether it is dead is decided by the lock of
        the entry: a clock may jump."""
        if not left.is_dir():
            left.unlink(missing_ok=True)
            return
        lock = self._folder / f"{left.name.partition('.')[0]}.lock"
        with _locked(lock, wait=False) as ours:
            if ours:
                shutil.rmtree(left, ignore_errors=True)
                lock.unlink(missing_ok=True)

    def _remove(self, entry: Path) -> bool:
        """Rename an entry, then remove it, so that no process finds half of it. False if another process makes it
        anew."""
        lock = self._folder / f"{entry.name}.lock"
        with _locked(lock, wait=False) as ours:
            if ours:
                doomed = Path(tempfile.mkdtemp(prefix=f"{entry.name}.", suffix=".tmp", dir=self._folder))
                entry.rename(doomed)  # over an empty folder
                shutil.rmtree(doomed, ignore_errors=True)
                lock.unlink(missing_ok=True)
        return ours


def _idle(path: Path, now: float) -> float:
    """Return the seconds since the last use; infinity for what is gone or was used in the future, by a wrong clock."""
    try:
        seconds = now - path.stat().st_mtime
    except OSError:
        return math.inf
    return math.inf if seconds < -IN_USE_S else seconds


def _size(entry: Path) -> int:
    try:
        return sum(file.stat().st_size for file in entry.iterdir())
    except OSError:
        return 0


def _checksum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _locked(file: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold an exclusive lock on a file, which may be removed meanwhile; the kernel releases it when the process dies.

    Without `wait`, yields false if another process holds it.
    """
    while True:
        with file.open("w") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            if _is_at(file, stream.fileno()):
                yield True
                return
            # The file was removed during the wait, and the next process locks another file of that name.


def _is_at(file: Path, opened: int) -> bool:
    try:
        return os.path.samestat(file.stat(), os.fstat(opened))
    except FileNotFoundError:
        return False


@contextmanager
def _as_cache_error(folder: Path) -> Iterator[None]:
    """Turn errors that an operator can solve into `CacheError`; others are bugs and pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in _SOLVABLE:
            raise
        raise CacheError(folder, error.strerror or str(error)) from error
