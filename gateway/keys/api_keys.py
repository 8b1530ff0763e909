"""API keys that are accepted: those of the settings, and those of a file that may change while the gateway runs."""

import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from gateway.keys.key_file import ApiKeysInvalid, KeyFile
from gateway.keys.record import ADMIN_NAME, DEFAULT_NAME, KeyLimits, digest_of
from gateway.settings import GatewaySettings

NO_LIMITS = KeyLimits()


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key that is accepted, without its secret."""

    name: str
    limits: KeyLimits = NO_LIMITS

    @property
    def expired(self) -> bool:
        """The key is refused from now on."""
        return self.limits.expires is not None and self.limits.expires.timestamp() <= time.time()


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
        self._file = KeyFile(Path(settings.api_keys_file).expanduser()) if settings.api_keys_file else None
        self._secret = secrets.token_bytes(32)
        self._clients, self._admins = self._read()
        if self._file is not None and not self._clients:
            raise ApiKeysInvalid(f"{self._file.path} has no key: `baton keys create NAME` adds one")

    def __bool__(self) -> bool:
        """True when clients need a key."""
        return bool(self._single) or self._file is not None

    @property
    def administers(self) -> bool:
        """There are keys for the administration."""
        return bool(self._admins)

    def find(self, key: bytes) -> ApiKey | None:
        """The key of a client, which may have expired; None for one that is not accepted."""
        return self._clients.get(self._digest(digest_of(key)))

    def find_admin(self, key: bytes) -> ApiKey | None:
        """A key for the administration, likewise."""
        return self._admins.get(self._digest(digest_of(key)))

    def reload(self) -> KeyChange:
        """Read the file again. It may have no key any more: then no client has access. Raises `ApiKeysInvalid`, and
        keeps the keys as they were."""
        if self._file is None:
            raise ApiKeysInvalid("there is no file to read again: start the server with `api_keys_file`")
        before = {**self._clients, **self._admins}
        self._clients, self._admins = self._read()
        after = {**self._clients, **self._admins}
        added = [key.name for digest, key in after.items() if digest not in before]
        removed = [key.name for digest, key in before.items() if digest not in after]
        return KeyChange(_sorted(key.name for key in after.values()), _sorted(added), _sorted(removed))

    def _read(self) -> tuple[Mapping[bytes, ApiKey], Mapping[bytes, ApiKey]]:
        """The keys of clients and those for the administration, by digest. Raises `ApiKeysInvalid`."""
        clients, admins = {}, {}
        if self._single:
            clients[self._digest(digest_of(self._single.encode()))] = ApiKey(DEFAULT_NAME)
        if self._admin:
            admins[self._digest(digest_of(self._admin.encode()))] = ApiKey(ADMIN_NAME)
        if self._file is None:
            return clients, admins
        for number, name, public, record in self._file.read():
            digest = self._digest(public)
            if digest in clients:
                raise ApiKeysInvalid(f"{self._file.path}, line {number}: {clients[digest].name!r} has the same key")
            if digest in admins:
                text = f"this is the admin key; give {name!r} another one"
                raise ApiKeysInvalid(f"{self._file.path}, line {number}: {text}")
            if record is None:
                clients[digest] = ApiKey(name)
            else:
                (admins if record.admin else clients)[digest] = ApiKey(name, record.limits)
        return clients, admins

    def _digest(self, digest: bytes) -> bytes:
        return blake2b(digest, key=self._secret, digest_size=32).digest()


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({*names} - {ADMIN_NAME}))
