"""The file of API keys: records as JSON lines, and lines `NAME:KEY`."""

import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from actors.process.regular_file import NotRegularFile, open_regular, read_regular
from gateway.keys.record import KeyRecord, check_name, digest_of, parse_record

MAX_KEYS = 1024
MAX_KEY_BYTES = 512
MAX_FILE_BYTES = 1 << 20
LOCK_S = 10.0
"""Time to wait for another process that changes the file."""
_POLL_S = 0.01
_LINE = re.compile(r"([^\s:]+)(?::\s*|\s+)(\S+)")


class ApiKeysInvalid(Exception):
    """Raised for keys that cannot be used; the text names the file, the line and the reason, and never a key."""


class KeyLine(NamedTuple):
    """One key of the file."""

    number: int
    """Number of the line, from 1."""
    name: str
    digest: bytes
    record: KeyRecord | None
    """None for a line `NAME:KEY`, which has no limits."""


Edit = Callable[[Sequence[KeyLine]], tuple[set[int], str]]
"""Decides a change of the file: the numbers of the lines to remove, and the line to add, or an empty one. Raises
`ApiKeysInvalid`."""


class KeyFile:
    """A file of API keys, which several processes may read and change. A change is seen whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[KeyLine]:
        """Read all keys. Raises `ApiKeysInvalid`."""
        return _parse(self._text(self.path), self.path)

    def add(self, record: KeyRecord) -> None:
        """Add a record. Makes the file if there is none, with mode 0600. Raises `ApiKeysInvalid`, also for a name that
        has a key."""
        try:
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            pass
        except OSError as error:
            raise self._not_written(error) from error

        def decide(lines: Sequence[KeyLine]) -> tuple[set[int], str]:
            if any(line.name == record.name for line in lines):
                raise ApiKeysInvalid(
                    f"{self.path} has a key of {record.name!r}; revoke it first, or choose another name"
                )
            return set(), record.line()

        self._change(decide)

    def change(self, name: str, make: Callable[[KeyRecord], KeyRecord]) -> KeyRecord:
        """Replace the record of a name. Returns the new one. Raises `ApiKeysInvalid`, and what `make` raises."""
        made: list[KeyRecord] = []

        def decide(lines: Sequence[KeyLine]) -> tuple[set[int], str]:
            found = self._of(name, lines)[0]
            if found.record is None:
                raise ApiKeysInvalid(f"{self.path}, line {found.number}: only keys of `baton keys create` have limits")
            made.append(make(found.record))
            return {found.number}, made[0].line()

        self._change(decide)
        return made[0]

    def remove(self, name: str) -> None:
        """Remove all keys of a name. Raises `ApiKeysInvalid`."""
        self._change(lambda lines: ({line.number for line in self._of(name, lines)}, ""))

    def _of(self, name: str, lines: Sequence[KeyLine]) -> list[KeyLine]:
        """The lines of a name, at least one. Raises `ApiKeysInvalid`."""
        found = [line for line in lines if line.name == name]
        if not found:
            raise ApiKeysInvalid(f"{self.path} has no key of {name[:100]!r}; `baton keys list` shows the names")
        return found

    def _change(self, decide: Edit) -> None:
        """Change the file. Raises `ApiKeysInvalid`."""
        try:
            path = self.path.resolve(strict=True)  # a link stays one
        except OSError as error:
            raise ApiKeysInvalid(f"{self.path} cannot be read: {error.strerror}") from error
        with self._locked(path) as status:
            text = self._text(path)  # the locked one, wherever a link leads by now
            gone, added = decide(_parse(text, self.path))
            lines = [line for number, line in enumerate(text.removesuffix("\n").split("\n"), 1) if number not in gone]
            changed = "\n".join([*lines, *[added] * bool(added)]).lstrip("\n") + "\n"
            if len(changed.encode()) > MAX_FILE_BYTES:
                raise ApiKeysInvalid(f"{self.path} would be over the bound of {MAX_FILE_BYTES} bytes")
            _parse(changed, self.path)
            try:
                _replace(path, changed, status)
            except OSError as error:
                raise self._not_written(error) from error

    def _not_written(self, error: OSError) -> ApiKeysInvalid:
        return ApiKeysInvalid(f"{self.path} cannot be written: {error.strerror}")

    @contextmanager
    def _locked(self, path: Path) -> Iterator[os.stat_result]:
        """Keep other processes from changing the file. Raises `ApiKeysInvalid`."""
        until = time.monotonic() + LOCK_S
        while True:
            try:
                with open_regular(path) as stream:
                    if _lock(stream.fileno(), path):
                        yield os.fstat(stream.fileno())
                        return
            except NotRegularFile as error:
                raise ApiKeysInvalid(f"{self.path} cannot be read: {error.strerror}") from error
            except OSError as error:
                raise ApiKeysInvalid(f"{self.path} cannot be locked: {error.strerror}") from error
            if time.monotonic() > until:
                raise ApiKeysInvalid(f"{self.path} is being changed by another process")
            time.sleep(_POLL_S)

    def _text(self, path: Path) -> str:
        """The text of a regular file that only its owner and group can read. Raises `ApiKeysInvalid`."""
        try:
            raw = read_regular(path, MAX_FILE_BYTES, lambda status: _check(status, self.path))
        except FileNotFoundError as error:
            text = f"the file of API keys {self.path} cannot be read: {error.strerror}; `baton keys create` makes it"
            raise ApiKeysInvalid(text) from error
        except OSError as error:
            raise ApiKeysInvalid(f"{self.path} cannot be read: {error.strerror}") from error
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise ApiKeysInvalid(f"{self.path} is not UTF-8 text") from error


def _lock(descriptor: int, path: Path) -> bool:
    """False if another process has the lock, or has replaced the file. Raises `OSError`."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(descriptor).st_ino == path.stat().st_ino


def _replace(path: Path, text: str, status: os.stat_result) -> None:
    """Write the file anew, with its owner and mode. Raises `OSError`."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            made = os.fstat(descriptor)
            if (made.st_uid, made.st_gid) != (status.st_uid, status.st_gid):
                os.fchown(descriptor, status.st_uid, status.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
            stream.write(text)
            stream.flush()
            os.fsync(descriptor)
        unfinished.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            unfinished.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _parse(text: str, file: Path) -> list[KeyLine]:
    """The keys of a text. Raises `ApiKeysInvalid`."""
    found: dict[bytes, KeyLine] = {}
    records: dict[str, int] = {}
    names: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            key = _parse_line(number, line)
        except ValueError as error:
            raise ApiKeysInvalid(f"{file}, line {number}: {error}") from error
        if key.digest in found:
            raise ApiKeysInvalid(f"{file}, line {number}: {found[key.digest].name!r} has the same key")
        if key.name in records or (key.record is not None and key.name in names):
            raise ApiKeysInvalid(f"{file}, line {number}: {key.name!r} has a key on line {names[key.name]}")
        names.setdefault(key.name, number)
        if key.record is not None:
            records[key.name] = number
        found[key.digest] = key
        if len(found) > MAX_KEYS:
            raise ApiKeysInvalid(f"{file} has more than {MAX_KEYS} keys")
    return list(found.values())


def _parse_line(number: int, line: str) -> KeyLine:
    """Raises `ValueError`, whose text has no key."""
    if line.startswith("{"):
        record = parse_record(line)
        return KeyLine(number, record.name, bytes.fromhex(record.sha256), record)
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError("a line is NAME:KEY or NAME KEY, a record of `baton keys`, or a comment after #")
    name, key = match.groups()
    check_name(name)
    if len(key.encode()) > MAX_KEY_BYTES:
        raise ValueError(f"the key is over the bound of {MAX_KEY_BYTES} bytes")
    return KeyLine(number, name, digest_of(key.encode()), None)


def _check(status: os.stat_result, file: Path) -> None:
    if status.st_uid not in (os.geteuid(), 0):  # secrets that an orchestrator mounts belong to root
        raise ApiKeysInvalid(f"{file} belongs to another user, who could read and change the keys")
    if status.st_mode & (stat.S_IWGRP | stat.S_IRWXO):
        raise ApiKeysInvalid(
            f"{file} is open to others (mode {stat.S_IMODE(status.st_mode):04o}): `chmod 600 {file}`, "
            "and replace the keys if somebody may have read them"
        )
