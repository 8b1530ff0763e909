"""API keys and their names: the one of the settings, and those of a file that may change while the gateway runs."""

import os
import re
import secrets
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from actors.process.regular_file import open_regular
from gateway.settings import GatewaySettings

DEFAULT_NAME = "default"
"""The name of the key `api_key`."""
ADMIN_NAME = "admin"
"""The name of the key `admin_key`."""
MAX_KEYS = 1024
MAX_NAME_LENGTH = 64
MAX_KEY_BYTES = 512
MAX_FILE_BYTES = 1 << 20
"""More than `MAX_KEYS` of the longest names and keys take, comments included."""
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME_LENGTH - 1}}}")
_LINE = re.compile(r"([^\s:]+)(?::\s*|\s+)(\S+)")


class ApiKeysInvalid(Exception):
    """Raised for keys that cannot be used; the text names the file, the line and the reason, and never a key."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """The result of reading the file again: the names of all keys, and of those that were added and removed."""

    names: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]


class ApiKeys:
    """The keys that are accepted now. Only `reload` changes them.

    A key is looked up by its keyed digest, so that the time of a lookup depends on no accepted key.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        """Raises `ApiKeysInvalid`."""
        self._single = settings.api_key
        self._admin = settings.admin_key
        self._file = Path(settings.api_keys_file).expanduser() if settings.api_keys_file else None
        self._secret = secrets.token_bytes(32)
        self._names = self._read()

    def __bool__(self) -> bool:
        """True when clients need a key."""
        return bool(self._names)

    def name_of(self, key: bytes) -> str | None:
        """The name of a key; None for one that is not accepted."""
        return self._names.get(self._digest(key))

    def reload(self) -> KeyChange:
        """Read the file again. Raises `ApiKeysInvalid`, and keeps the keys as they were."""
        if self._file is None:
            raise ApiKeysInvalid("there is no file to read again: start the server with `api_keys_file`")
        before, self._names = self._names, self._read()
        added = [name for digest, name in self._names.items() if digest not in before]
        removed = [name for digest, name in before.items() if digest not in self._names]
        return KeyChange(_sorted(self._names.values()), _sorted(added), _sorted(removed))

    def _read(self) -> Mapping[bytes, str]:
        names = {self._digest(self._single.encode()): DEFAULT_NAME} if self._single else {}
        if self._file is None:
            return names
        for line, name, key in _parse(_text(self._file), self._file):
            digest = self._digest(key.encode())
            if digest in names:
                raise ApiKeysInvalid(f"{self._file}, line {line}: {names[digest]!r} has the same key")
            if self._admin and secrets.compare_digest(key.encode(), self._admin.encode()):
                raise ApiKeysInvalid(f"{self._file}, line {line}: this is the admin key; give {name!r} another one")
            names[digest] = name
        if not names:  # a server without any key would be open
            raise ApiKeysInvalid(f"{self._file} has no key: add a line NAME:KEY")
        return names

    def _digest(self, key: bytes) -> bytes:
        return blake2b(key, key=self._secret, digest_size=32).digest()


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


def _parse(text: str, file: Path) -> list[tuple[int, str, str]]:
    """The number, the name and the key of each line that has one. Raises `ApiKeysInvalid`."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ApiKeysInvalid(f"{file}, line {number}: a line is NAME:KEY or NAME KEY, or a comment after #")
        name, key = match.groups()
        if not _NAME.fullmatch(name):
            rule = f"1 to {MAX_NAME_LENGTH} letters, digits, and . _ - after the first"
            raise ApiKeysInvalid(f"{file}, line {number}: the name is not {rule}")
        if name in (DEFAULT_NAME, ADMIN_NAME):
            raise ApiKeysInvalid(f"{file}, line {number}: {name!r} is the name of a key of the settings")
        if len(key.encode()) > MAX_KEY_BYTES:
            raise ApiKeysInvalid(f"{file}, line {number}: the key is over the bound of {MAX_KEY_BYTES} bytes")
        found.append((number, name, key))
        if len(found) > MAX_KEYS:
            raise ApiKeysInvalid(f"{file} has more than {MAX_KEYS} keys")
    return found


def _text(file: Path) -> str:
    """The text of a regular file that only its owner and group can read. Raises `ApiKeysInvalid`."""
    try:
        with open_regular(file) as stream:
            _check(os.fstat(stream.fileno()), file)
            raw = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ApiKeysInvalid(f"{file} cannot be read: {error.strerror}") from error
    if len(raw) > MAX_FILE_BYTES:
        raise ApiKeysInvalid(f"{file} is over the bound of {MAX_FILE_BYTES} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ApiKeysInvalid(f"{file} is not UTF-8 text") from error


def _check(status: os.stat_result, file: Path) -> None:
    if status.st_uid not in (os.geteuid(), 0):  # secrets that an orchestrator mounts belong to root
        raise ApiKeysInvalid(f"{file} belongs to another user, who could read and change the keys")
    if status.st_mode & (stat.S_IWGRP | stat.S_IRWXO):
        raise ApiKeysInvalid(
            f"{file} is open to others (mode {stat.S_IMODE(status.st_mode):04o}): `chmod 600 {file}`, "
            "and replace the keys if somebody may have read them"
        )
