"""The files of adapters that are loaded at run time: only those below the folders of the settings, and as they were
when they were loaded."""

import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from actors.process.file_digest import file_digest
from actors.process.regular_file import open_beneath
from protocol.adapter_files import ADAPTER_FILES, DIGEST_BYTES
from protocol.bounds import MAX_ADAPTER_BYTES, MAX_PATH


class AdapterPathRefused(Exception):
    """Raised for a path that may not be loaded; the message says why. `missing` is true if nothing is there."""

    def __init__(self, text: str, *, missing: bool = False) -> None:
        super().__init__(text)
        self.missing = missing


class AdapterFiles:
    """Owns copies of the adapters that were loaded, from which workers read them that start later: whatever becomes of
    the files, a worker that was restarted has the same weights. They are removed when this process ends."""

    def __init__(self, folders: Sequence[str]) -> None:
        """Adapters may be anywhere below `folders`."""
        self._folders = [Path(folder).expanduser().absolute() for folder in folders]
        self._root: Path | None = None
        self._lock = Lock()
        self._held: Counter[str] = Counter()
        """Loads that use a copy, by its digest."""

    def copy(self, path: str) -> tuple[str, tuple[str, ...]]:
        """Copy the adapter at a path, which may be relative to one of the folders. Returns its digest, and the
        directories that workers look into: the copy, which is held until `release`, and for those of other machines the
        path.

        Called on threads. Raises `AdapterPathRefused`.
        """
        directory = self._find(path)
        if not (directory / ADAPTER_FILES[0]).is_file():
            raise AdapterPathRefused(f"there is no {ADAPTER_FILES[0]} in {path!r}", missing=True)
        target = Path(tempfile.mkdtemp(dir=self._opened_root()))
        try:
            digest = file_digest(directory, ADAPTER_FILES, DIGEST_BYTES, MAX_ADAPTER_BYTES, self._open, target)
            with self._lock:
                if (kept := target.parent / digest).exists():
                    shutil.rmtree(target)
                else:
                    target.rename(kept)
                self._held[digest] += 1
        except (OSError, ValueError, RuntimeError) as error:  # the latter of links that go round in a circle
            shutil.rmtree(target, ignore_errors=True)
            raise AdapterPathRefused(f"{path!r} cannot be read: {error}") from error
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
        return digest, (str(kept), str(directory))

    def release(self, digest: str) -> None:
        """End what `copy` has begun, before `remove`."""
        with self._lock:
            self._held[digest] -= 1
            self._held += Counter()  # without those of zero

    def remove(self, digest: str) -> None:
        """Remove the copy of an adapter that no worker has to load any more, unless another load uses it."""
        with self._lock:
            if self._root is not None and not self._held[digest]:
                shutil.rmtree(self._root / digest, ignore_errors=True)

    def _find(self, path: str) -> Path:
        if not path or len(path) > MAX_PATH or "\0" in path:
            raise AdapterPathRefused(f"give the path of a directory, of at most {MAX_PATH} characters")
        candidates = [folder / path for folder in self._folders]  # an absolute path stays what it is
        allowed = [each for each in candidates if self._is_allowed(each)]
        if not allowed:
            raise AdapterPathRefused("it is not below a folder of the setting `lora_dirs`")
        found = next((each for each in allowed if each.is_dir()), None)
        if found is None:
            raise AdapterPathRefused(f"there is no directory {path!r}", missing=True)
        return found

    def _is_allowed(self, path: Path) -> bool:
        try:
            resolved = path.resolve()
        except (OSError, RuntimeError):  # of links that go round in a circle
            return False
        return any(resolved.is_relative_to(folder.resolve()) for folder in self._folders)

    def _open(self, file: Path) -> BinaryIO:
        resolved = file.resolve()
        for folder in self._folders:
            if resolved.is_relative_to(root := folder.resolve()):
                return open_beneath(root, resolved.relative_to(root))
        raise AdapterPathRefused(f"{file.name} is a link to a file that is not below a folder of `lora_dirs`")

    def _opened_root(self) -> Path:
        with self._lock:
            if self._root is None:
                self._root = Path(tempfile.mkdtemp(prefix="baton-adapters-"))
                weakref.finalize(self, shutil.rmtree, self._root, ignore_errors=True)
            return self._root
