"""The allow-list: a folder with one key file for each worker that may connect, looked at for every connection."""

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from actors.process.regular_file import FileTooLarge, NotRegularFile, read_regular
from actors.transport.keys import (
    KEY_FILE_BYTES,
    KeyFileError,
    files_of,
    from_z85,
    make_folder,
    remove_file,
    to_z85,
    write_new,
    write_over,
)
from protocol.bounds import MAX_NAME

WORKERS = "workers"
"""The folder, in the gateway's, with a file for each worker that may connect: NAME.pub, its public key."""
MAX_ALLOWED = 1024
"""Workers of one allow-list."""
RACY_S = 2.0
"""A file may change twice within one tick of a file system's clock. What is younger than this is read again."""
_SUFFIX = ".pub"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Narrower than `protocol.bounds.Name`, for it names a file as well."""

_Signature = tuple[tuple[str, int, int, int, int], ...]
"""Name, inode, size, time of the last write and of the last change of anything, in nanoseconds, of each file."""


@dataclass(frozen=True, slots=True)
class Listed:
    """The result of reading the list."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Names that may connect, by public key (Z85)."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Files that admit nobody, and why."""


class AllowList:
    """Workers that may connect, in a folder: one file each, so that lists are merged, copied and managed like files.

    A file that holds no key, or is named like no worker, admits nobody: neither the one that it may have been meant for
    nor the one that it named before. What the other files say holds.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / WORKERS

    def read(self) -> Listed:
        """Read all files. An absent folder is an empty list. Raises `KeyFileError` when the system does not let it be
        read: then nothing is known."""
        return self.parse(self.files())

    def files(self) -> list[Path]:
        """Return the files of the list, by name. Raises `KeyFileError`."""
        return files_of(self.folder, _SUFFIX)

    def parse(self, files: list[Path]) -> Listed:
        """Read these files, the first `MAX_ALLOWED` of them. Raises `KeyFileError`."""
        names: dict[str, str] = {}
        refused: dict[str, str] = {}
        for file in files[:MAX_ALLOWED]:
            try:
                check_name(file.stem)
                key = to_z85(read_regular(file, KEY_FILE_BYTES).decode("ascii", "replace"), file.name)
                if key in names:
                    raise KeyFileError(f"{file.name} has the key of {names[key]}: each worker needs its own")
            except FileNotFoundError:
                continue  # removed since the folder was read
            except (PermissionError, NotRegularFile, FileTooLarge) as error:
                refused[file.name] = f"{file.name} cannot be read: {error.strerror}"
            except KeyFileError as error:
                refused[file.name] = str(error)
            except OSError as error:  # as when there is no descriptor left: this says nothing of the file
                raise KeyFileError(f"{file} cannot be read: {error.strerror}") from error
            else:
                names[key] = file.stem
        if len(files) > MAX_ALLOWED:
            first = files[MAX_ALLOWED].name
            refused[first] = f"{first} and those after it: {len(files)} are too many, {MAX_ALLOWED} is the most"
        return Listed(names, refused)

    def add(self, name: str, text: str) -> Path:
        """Let a worker connect. Its file, which is given, is there whole or not at all. Raises `KeyFileError`, also for
        a name or a key that is there already."""
        check_name(name)
        key = to_z85(text)
        listed = self.read()
        if key in listed.names:
            raise KeyFileError(f"that is the key of {listed.names[key]}")
        if (count := len(listed.names) + len(listed.refused)) >= MAX_ALLOWED:
            raise KeyFileError(f"{self.folder} has {count} keys already; {MAX_ALLOWED} is the most")
        make_folder(self.folder)
        write_new(self._file(name), from_z85(key), 0o644)
        return self._file(name)

    def put(self, name: str, text: str) -> None:
        """Let a worker connect under this name with this key, in place of the one that had the name, if any. Raises
        `KeyFileError`, also for a key that has another name."""
        check_name(name)
        key = to_z85(text)
        listed = self.read()
        if listed.names.get(key, name) != name:
            raise KeyFileError(f"that is the key of {listed.names[key]}")
        if (count := len(listed.names) + len(listed.refused)) >= MAX_ALLOWED and not self._file(name).exists():
            raise KeyFileError(f"{self.folder} has {count} keys already; {MAX_ALLOWED} is the most")
        make_folder(self.folder)
        write_over(self._file(name), from_z85(key), 0o644)

    def remove(self, name: str) -> None:
        """Let it connect no more, also after a crash of the machine. Raises `KeyFileError` when it is not there."""
        check_name(name)
        if not remove_file(self._file(name)):
            raise KeyFileError(f"there is no worker {name!r} in {self.folder}")

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}{_SUFFIX}"


class WatchedList:
    """An allow-list for those who ask often: its files are read again only when one of them has changed."""

    def __init__(self, source: AllowList) -> None:
        self._source = source
        self._signature: _Signature = ()
        self._settled = False
        self._listed = Listed()

    def look(self) -> Listed:
        """The list now. When the system does not let it be read, the list as it was before (empty the first time); the
        problem is among what is refused."""
        try:
            files = self._source.files()
            signature = self._sign(files)
            if signature != self._signature or not self._settled:
                newest = max((changed for *_, changed in signature), default=0)  # which nobody can set back
                settled = newest < time.time_ns() - int(RACY_S * 1e9)
                self._listed = self._source.parse(files)
                self._signature, self._settled = signature, settled
        except KeyFileError as error:
            return Listed(self._listed.names, {**self._listed.refused, self._source.folder.name: str(error)})
        return self._listed

    @staticmethod
    def _sign(files: list[Path]) -> _Signature:
        found = []
        for file in files:
            try:
                state = os.stat(file)
            except OSError:
                continue  # gone, or it says why when it is read
            found.append((file.name, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns))
        return tuple(found)


def check_name(name: str) -> None:
    """Raises `KeyFileError` for what cannot be a worker's name and a file's."""
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise KeyFileError(
            f"{name[:MAX_NAME]!r} is not a valid worker name: letters, digits, and . _ - after the first"
        )
