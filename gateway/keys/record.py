"""Records of API keys: a digest of the key, its limits and its expiry."""

import re
import secrets
from datetime import UTC, datetime
from hashlib import sha256
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from gateway.key_weights import Priority
from protocol.bounds import Name

PREFIX = "sk-baton-"
"""The beginning of new keys, by which scanners for leaked secrets can find them."""
KEY_BYTES = 32
"""Random bytes of a new key. With so many an unsalted digest reveals nothing of it."""
MAX_NAME_LENGTH = 64
MAX_LIMIT = 10**9
MAX_MODELS = 64
DEFAULT_NAME = "default"
"""The name of the key `api_key`."""
ADMIN_NAME = "admin"
"""The name of the key `admin_key`."""
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME_LENGTH - 1}}}")

Limit = Annotated[int, Meta(ge=1, le=MAX_LIMIT)]
Time = Annotated[datetime, Meta(tz=True)]


class KeyLimits(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Limits of the requests with one key. None is no limit."""

    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    """Tokens of prompts and answers together."""
    max_concurrent: Limit | None = None
    """Requests at once."""
    models: Annotated[tuple[Name, ...], Meta(max_length=MAX_MODELS)] = ()
    """The models that it may use; empty: all."""
    priority: Priority = Priority.NORMAL
    expires: Time | None = None
    """The time from which the key is refused."""

    def allows(self, model: str) -> bool:
        """True for a model that the key may use."""
        return not self.models or model in self.models


class KeyRecord(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One line of the file, as a JSON object."""

    name: str
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$", max_length=64)]
    """The SHA-256 digest of the key."""
    created: Time
    admin: bool = False
    """The key administers the server, and opens nothing else. It has no limits but its expiry."""
    limits: KeyLimits = KeyLimits()

    def check(self) -> "KeyRecord":
        """Raises `ValueError`. Returns itself."""
        check_name(self.name)
        if self.admin and self.limits != KeyLimits(expires=self.limits.expires):
            raise ValueError("a key for the administration has no limits but its expiry")
        return self

    def line(self) -> str:
        """The record as a line of the file."""
        return msgspec.json.encode(self).decode()


_decoder = msgspec.json.Decoder(KeyRecord)


def parse_record(line: str) -> KeyRecord:
    """Raises `ValueError` saying which field is wrong."""
    try:
        return _decoder.decode(line).check()
    except msgspec.DecodeError as error:
        raise ValueError(f"the record is not valid: {error}") from error


def check_name(name: str) -> None:
    """Raises `ValueError` for what cannot be the name of a key."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"the name is not 1 to {MAX_NAME_LENGTH} letters, digits, and . _ - after the first")
    if name in (DEFAULT_NAME, ADMIN_NAME):
        raise ValueError(f"{name!r} is the name of a key of the settings")


def make_key() -> str:
    """Make a new key."""
    return PREFIX + secrets.token_urlsafe(KEY_BYTES)


def digest_of(key: bytes) -> bytes:
    """The digest by which a key is looked up."""
    return sha256(key).digest()


def make_record(name: str, key: str, limits: KeyLimits, *, admin: bool = False) -> KeyRecord:
    """Make the record of a new key. Raises `ValueError`."""
    created = datetime.now(UTC).replace(microsecond=0)
    digest = digest_of(key.encode()).hex()
    return KeyRecord(name=name, sha256=digest, created=created, admin=admin, limits=limits).check()
