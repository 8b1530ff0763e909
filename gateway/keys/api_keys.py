"""API keys that are accepted: those of the settings, and those of a file that may change while the gateway runs."""

import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from gateway.key_weights import CLASS_WEIGHTS, CLASSES
from gateway.keys.account import KeyAccount
from gateway.keys.key_file import ApiKeysInvalid, KeyFile, KeyLine
from gateway.keys.record import ADMIN_NAME, DEFAULT_NAME, KeyLimits, digest_of
from gateway.metrics.key_collector import KeyUse
from gateway.settings import GatewaySettings
from protocol.scheduling import PriorityClass


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key that is accepted, without its secret."""

    name: str
    limits: KeyLimits
    account: KeyAccount
    """Shared by the keys of one name."""

    @property
    def expired(self) -> bool:
        """The key is refused from now on."""
        return self.limits.expires is not None and self.limits.expires.timestamp() <= time.time()


class _Entry(NamedTuple):
    name: str
    limits: KeyLimits = KeyLimits()


@dataclass(frozen=True, slots=True)
class KeyChange:
    """The result of reading the file again: the names of all keys, and of those that were added and removed."""

    names: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]


class ApiKeys:
    """The keys that are accepted now. Only `adopt` changes them.

    A key is looked up by its keyed digest, so that the time of a lookup depends on no accepted key.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        """Raises `ApiKeysInvalid`."""
        self._single = settings.api_key
        self._admin = settings.admin_key
        self._file = KeyFile(Path(settings.api_keys_file).expanduser()) if settings.api_keys_file else None
        self._secret = secrets.token_bytes(32)
        self._accounts: dict[str, KeyAccount] = {}
        """Those of clients, by name."""
        self.share_of_new = 1.0
        """The share of this gateway in the limits of a key that is added, until it has a lease; set by the leases."""
        self._clients, self._admins = self._made(self.read())
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

    def uses(self) -> dict[str, KeyUse]:
        """The use of the keys of clients, by name. That of a removed key is forgotten."""
        return {name: account.use for name, account in self._accounts.items()}

    @property
    def accounts(self) -> Mapping[str, KeyAccount]:
        """The accounts of the keys of clients, by name."""
        return self._accounts

    def weight(self, name: str) -> float:
        """The weight of a client's key, by its priority class; 1 for another name."""
        account = self._accounts.get(name)
        return 1.0 if account is None else CLASS_WEIGHTS[account.limits.priority]

    def priority_class(self, name: str) -> PriorityClass:
        """The priority class of a client's key; `normal` for another name."""
        account = self._accounts.get(name)
        return "normal" if account is None else CLASSES[account.limits.priority]

    def limits(self) -> dict[str, KeyLimits]:
        """The limits of the keys of clients, by name."""
        return {key.name: key.limits for key in self._clients.values()}

    def read(self) -> list[KeyLine]:
        """Read the file again, for `adopt`. May be called in any thread. Raises `ApiKeysInvalid`."""
        return [] if self._file is None else self._file.read()

    def adopt(self, lines: Sequence[KeyLine]) -> KeyChange:
        """Accept the keys of the file that was read. There may be none any more: then no client has access. Raises
        `ApiKeysInvalid`, and keeps the keys as they were."""
        if self._file is None:
            raise ApiKeysInvalid("there is no file to read again: start the server with `api_keys_file`")
        before = {**self._clients, **self._admins}
        self._clients, self._admins = self._made(lines)
        after = {**self._clients, **self._admins}
        added = [key.name for digest, key in after.items() if digest not in before]
        removed = [key.name for digest, key in before.items() if digest not in after]
        return KeyChange(_sorted(key.name for key in after.values()), _sorted(added), _sorted(removed))

    def _made(self, lines: Sequence[KeyLine]) -> tuple[Mapping[bytes, ApiKey], Mapping[bytes, ApiKey]]:
        """The keys of clients and those for the administration, by digest. Raises `ApiKeysInvalid`."""
        clients: dict[bytes, _Entry] = {}
        admins: dict[bytes, _Entry] = {}
        if self._single:
            clients[self._digest(digest_of(self._single.encode()))] = _Entry(DEFAULT_NAME)
        if self._admin:
            admins[self._digest(digest_of(self._admin.encode()))] = _Entry(ADMIN_NAME)
        for number, name, public, record in lines:
            where = f"{self._file and self._file.path}, line {number}"
            digest = self._digest(public)
            if digest in clients:
                raise ApiKeysInvalid(f"{where}: {clients[digest].name!r} has the same key")
            if digest in admins:
                raise ApiKeysInvalid(f"{where}: this is the admin key; give {name!r} another one")
            if record is None:
                clients[digest] = _Entry(name)
            else:
                (admins if record.admin else clients)[digest] = _Entry(name, record.limits)
        # From here on nothing fails, so that the accounts change with the keys.
        before, self._accounts = self._accounts, {}
        for name, limits in clients.values():
            account = before.get(name) or KeyAccount(limits, time.monotonic, self.share_of_new)
            account.update(limits)
            self._accounts[name] = before[name] = account
        return (
            {digest: ApiKey(*entry, self._accounts[entry.name]) for digest, entry in clients.items()},
            {digest: ApiKey(*entry, KeyAccount(entry.limits, time.monotonic)) for digest, entry in admins.items()},
        )

    def _digest(self, digest: bytes) -> bytes:
        return blake2b(digest, key=self._secret, digest_size=32).digest()


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({*names} - {ADMIN_NAME}))
