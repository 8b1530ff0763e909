"""The files of adapters that are loaded at run time: only those below certain folders, and as they were when they were
loaded."""

import errno
import re
import secrets
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from actors.process.file_digest import file_digest
from actors.process.regular_file import open_beneath, open_regular
from protocol.adapter_files import ADAPTER_FILES, DIGEST_BYTES
from protocol.bounds import MAX_ADAPTER_BYTES, MAX_PATH

PARTIAL = "partial-"
"""Prefix of a copy that is not complete."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_COPY = re.compile(rf"[0-9a-f]{{{2 * DIGEST_BYTES}}}|{PARTIAL}.*")


class AdapterPathRefused(Exception):
    """Raised for a path that may not be loaded; the message says why. `missing` is true if nothing is there, and
    `unavailable` if it may be loaded later: no copy can be made now."""

    def __init__(self, text: str, *, missing: bool = False, unavailable: bool = False) -> None:
        super().__init__(text)
        self.missing = missing
        self.unavailable = unavailable


class AdapterFiles:
    """Owns copies of the adapters that were loaded, from which workers read them that start later: whatever becomes of
    the files, a worker that was restarted has the same weights. They are removed when this process ends, or stay in the
    folder that keeps them."""

    def __init__(self, folders: Sequence[str], kept_in: Path | None = None) -> None:
        """Adapters may be anywhere below `folders`. Copies stay in the existing folder `kept_in`, if there is one."""
        self._folders = [Path(folder).expanduser().absolute() for folder in folders]
        self._root = kept_in
        self._lock = Lock()
        self._held: Counter[str] = Counter()
        """Loads that use a copy, by its digest."""

    def find(self, path: str) -> Path:
        """Return the directory of the adapter at a path, which may be relative to one of the folders.

        Called on threads. Raises `AdapterPathRefused`.
        """
        if not path or len(path) > MAX_PATH or "\0" in path:
            raise AdapterPathRefused(f"give the path of a directory, of at most {MAX_PATH} characters")
        candidates = [folder / path for folder in self._folders]  # an absolute path stays what it is
        allowed = [each for each in candidates if _is_below(each, self._folders)]
        if not allowed:
            raise AdapterPathRefused("it is not below a folder of the setting `lora_dirs`")
        try:
            found = next((each for each in allowed if each.is_dir()), None)
            if found is None:
                raise AdapterPathRefused(f"there is no directory {path!r}", missing=True)
            check_directory(found, path)
        except OSError as error:  # of a name that is too long, or of a folder that may not be read
            raise AdapterPathRefused(f"{path!r} cannot be read: {error.strerror}") from error
        return found

    def copy(self, directory: Path, below: Path | None = None) -> tuple[str, tuple[str, ...]]:
        """Copy the adapter in a directory, whose files may be links to others below the folders, or below the folder
        `below`. Returns its digest, and the directories that workers look into: the copy, which is held until
        `release`, and for those of other machines the directory.

        Called on threads. Raises `AdapterPathRefused`.
        """
        folders = self._folders if below is None else [below]
        try:
            target = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=self._opened_root()))
        except OSError as error:
            text = f"the adapter cannot be copied to {self._root or 'the folder for temporary files'}: {error.strerror}"
            raise AdapterPathRefused(text, unavailable=True) from error

        def opened(file: Path) -> BinaryIO:
            return _open_below(file, folders)

        try:
            digest = file_digest(directory, ADAPTER_FILES, DIGEST_BYTES, MAX_ADAPTER_BYTES, opened, target)
            kept, damaged = target.parent / digest, target.with_name(f"{target.name}-damaged")
            whole = kept.exists() and _is_whole(kept, digest)
            with self._lock:
                if not whole and kept.exists():  # the machine may have lost its power before all was on the disk
                    kept.rename(damaged)
                if not kept.exists():
                    target.rename(kept)
                self._held[digest] += 1
            for left in (target, damaged):
                shutil.rmtree(left, ignore_errors=True)
        except (OSError, ValueError, RuntimeError) as error:  # the latter of links that go round in a circle
            shutil.rmtree(target, ignore_errors=True)
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                text = f"the adapter cannot be copied to {target.parent}: {error.strerror}"
                raise AdapterPathRefused(text, unavailable=True) from error
            raise AdapterPathRefused(f"{str(directory)!r} cannot be read: {error}") from error
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
        return digest, (str(kept), str(directory))

    def copy_of(self, digest: str) -> Path:
        """Return the place of the copy of an adapter, whether or not it is there."""
        return self._opened_root() / digest

    def release(self, digest: str) -> None:
        """End what `copy` has begun, before `remove`."""
        with self._lock:
            self._held[digest] -= 1
            self._held += Counter()  # without those of zero

    def remove(self, digest: str) -> Path | None:
        """Take away the copy of an adapter that no worker has to load any more, unless another load uses it. Returns
        where it is now, for a thread to delete it: gigabytes take long. Raises `OSError`."""
        with self._lock:
            if self._root is None or self._held[digest] or not (kept := self._root / digest).exists():
                return None
            gone = self._root / f"{PARTIAL}{secrets.token_hex(8)}"
            kept.rename(gone)
            return gone

    def sweep(self, digests: Iterable[str]) -> None:
        """Remove all copies but these from the folder that keeps them, and what a process that was killed has begun."""
        root, kept = self._opened_root(), set(digests)
        for each in root.iterdir():
            if _COPY.fullmatch(each.name) and each.name not in kept and not each.is_symlink():
                shutil.rmtree(each, ignore_errors=True)

    def _opened_root(self) -> Path:
        with self._lock:
            if self._root is None:
                self._root = Path(tempfile.mkdtemp(prefix="baton-adapters-"))
                weakref.finalize(self, shutil.rmtree, self._root, ignore_errors=True)
            return self._root


def check_directory(directory: Path, named: str) -> None:
    """Refuse a directory without the files of an adapter. Raises `AdapterPathRefused` and `OSError`."""
    description, *weights = ADAPTER_FILES
    if not (directory / description).is_file():
        raise AdapterPathRefused(f"there is no {description} in {named!r}", missing=True)
    if not any((directory / name).exists() for name in weights):
        raise AdapterPathRefused(f"there is neither {' nor '.join(weights)} in {named!r}", missing=True)


def _is_below(path: Path, folders: Sequence[Path]) -> bool:
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError):  # of links that go round in a circle
        return False
    return any(resolved.is_relative_to(folder.resolve()) for folder in folders)


def _is_whole(copy: Path, digest: str) -> bool:
    """A copy has the files that it had when it was made. Raises `OSError`."""
    return file_digest(copy, ADAPTER_FILES, DIGEST_BYTES, MAX_ADAPTER_BYTES, open_regular) == digest


def _open_below(file: Path, folders: Sequence[Path]) -> BinaryIO:
    resolved = file.resolve()
    for folder in folders:
        if resolved.is_relative_to(root := folder.resolve()):
            return open_beneath(root, resolved.relative_to(root))
    raise AdapterPathRefused(f"{file.name} is a link to a file that is not below a folder of `lora_dirs`")
