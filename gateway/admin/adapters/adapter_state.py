"""The adapters that requests have loaded, in a file: the next gateway has them again.

The folder has `adapters.json` and, by their digests, the copies of `gateway.admin.adapters.adapter_files`. It belongs
to one server, which locks it (flock(2)). Its successor uses it, too, while that takes over, and then locks it. The lock
file has the ids of these processes, so that a server is refused that takes over from another one.
"""

import errno
import fcntl
import os
import weakref
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from actors.process.regular_file import read_regular
from gateway.routing.adapters.registry import MAX_ADAPTER_NAME, is_version
from protocol.bounds import MAX_NAME, MAX_PATH

STATE_FILE = "adapters.json"
LOCK_FILE = "adapters.lock"
MAX_STATE_BYTES = 32 << 20
MAX_KEPT = 1024
"""Adapters in the file, those of models that are not served now among them."""


class AdapterStateInvalid(Exception):
    """Raised for a folder of state that cannot be used; the message names it and says what to do."""


class KeptAdapter(Struct, frozen=True, forbid_unknown_fields=True):
    """An adapter that requests may name."""

    name: str
    model: str
    digest: str
    path: str
    """The directory from which it was loaded, where workers of other machines look for it."""


class _Content(Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    adapters: tuple[KeptAdapter, ...]


class AdapterState:
    """Owns the file. Its content is known from its beginning on, and written whole."""

    def __init__(self, folder: str, *, predecessor: int = 0) -> None:
        """Read it; a folder that is not there is made, for its owner alone. `predecessor` is the process of the server
        that this one takes over from, 0 for none. Raises `AdapterStateInvalid`, also for a folder that another server
        uses."""
        self.folder = Path(folder).expanduser().absolute()
        self._unlock: weakref.finalize[[int], AdapterState] | None = None
        self._closed = False
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._kept = {each.name: each for each in self._read()}
            if not os.access(self.folder, os.W_OK | os.X_OK):
                raise AdapterStateInvalid(f"lora_state_dir: {self.folder} cannot be written: name another folder")
            if not self._lock() and not (predecessor and self._joins(predecessor)):
                whose = f" than process {predecessor}, from which this one takes over," if predecessor else ""
                text = f"another server{whose} uses {self.folder}: each one needs a folder of its own"
                raise AdapterStateInvalid(f"lora_state_dir: {text}")
        except OSError as error:
            text = f"lora_state_dir: {self.folder} cannot be used: {error.strerror}: name another folder"
            raise AdapterStateInvalid(text) from error

    def close(self) -> None:
        """Let another server use the folder, as the end of this process does."""
        self._closed = True
        if self._unlock is not None:
            self._unlock()
            self._unlock = None

    def hold(self) -> bool:
        """Keep other servers from the folder once the predecessor has ended. False if it has not. Raises `OSError`."""
        return self._closed or self._lock()

    def _lock(self) -> bool:
        """Lock the folder. False if another server has it. Raises `OSError`."""
        if self._unlock is None:
            descriptor = os.open(self.folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(descriptor)
                if isinstance(error, BlockingIOError):
                    return False
                raise
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
            self._unlock = weakref.finalize(self, os.close, descriptor)
        return True

    def _joins(self, predecessor: int) -> bool:
        """Note that this process uses the folder beside its predecessor. False if that does not use it. Raises
        `OSError`."""
        if not self._uses_folder(predecessor):
            return False
        with (self.folder / LOCK_FILE).open("a") as file:
            file.write(f"{os.getpid()}\n")
        return True

    def _uses_folder(self, process: int) -> bool:
        """Return whether a process is one of those that use the locked folder. A server before Baton noted them may be
        any. Raises `OSError`."""
        noted = (self.folder / LOCK_FILE).read_bytes().split()
        return not noted or str(process).encode() in noted

    @property
    def adapters(self) -> list[KeptAdapter]:
        """All of them, in the order in which they were loaded."""
        return list(self._kept.values())

    def has(self, name: str) -> bool:
        """An adapter of this name is kept."""
        return name in self._kept

    def has_room(self, name: str) -> bool:
        """An adapter of this name can be added."""
        return name in self._kept or len(self._kept) < MAX_KEPT

    def uses(self, digest: str) -> bool:
        """An adapter that is kept has this digest."""
        return any(each.digest == digest for each in self._kept.values())

    def add(self, adapter: KeptAdapter) -> None:
        """Keep an adapter, in place of the one with its name. `write` makes it last."""
        self._kept.pop(adapter.name, None)
        self._kept[adapter.name] = adapter

    def discard(self, name: str) -> None:
        """Keep an adapter no more."""
        self._kept.pop(name, None)

    def write(self, adapters: Iterable[KeptAdapter]) -> None:
        """Write the file: it is the one before or the new one, whenever this process is killed. For threads, one at a
        time. Raises `OSError`, also if another server has locked the folder after the predecessor of this one."""
        if not self._lock() and not self._uses_folder(os.getpid()):
            raise OSError(errno.EBUSY, "another server uses the folder now")
        content = msgspec.json.format(msgspec.json.encode(_Content(1, tuple(adapters))))
        partial = self.folder / f"{STATE_FILE}.partial"
        with suppress(FileNotFoundError):
            partial.unlink()
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(self.folder / STATE_FILE)

    def _read(self) -> tuple[KeptAdapter, ...]:
        file = self.folder / STATE_FILE
        try:
            content = msgspec.json.decode(read_regular(file, MAX_STATE_BYTES), type=_Content)
        except FileNotFoundError:
            return ()
        except msgspec.DecodeError as error:  # invalid UTF-8 is one, too
            raise AdapterStateInvalid(f"lora_state_dir: {file} cannot be read: {error}; repair or remove it") from error
        if (problem := _problem(content)) is not None:
            raise AdapterStateInvalid(f"lora_state_dir: {file}: {problem}; repair or remove it")
        return content.adapters


def _problem(content: _Content) -> str | None:
    """Return what is wrong with a file: its paths and digests become those that files are read from."""
    if content.version != 1:
        return f"version {content.version} is not 1"
    if len(content.adapters) > MAX_KEPT:
        return f"{len(content.adapters)} adapters are more than {MAX_KEPT}"
    names = set()
    for at, each in enumerate(content.adapters):
        valid = {
            "name": each.name not in names and 0 < len(each.name) <= MAX_ADAPTER_NAME and each.name.isprintable(),
            "model": 0 < len(each.model) <= MAX_NAME,
            "digest": is_version(f"x@{each.digest}"),
            "path": each.path.startswith("/") and len(each.path) <= MAX_PATH and "\0" not in each.path,
        }
        names.add(each.name)
        if wrong := [field for field, is_valid in valid.items() if not is_valid]:
            return f"adapters[{at}].{wrong[0]} is invalid"
    return None
