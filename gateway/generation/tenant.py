"""Tenants: the groups of requests that may share KV."""

import hashlib

from protocol.commands import TENANT_SALT


def tenant_of(key: bytes, salt: str) -> str:
    """The tenant of a request: KV is shared by requests with the same API key and the same `cache_salt`.

    It is a digest of the key, which does not reveal it, and behind `TENANT_SALT` one of the salt. Each is empty without
    one.
    """
    secret = hashlib.blake2b(key).digest()
    owner = _digest(secret, "") if key else ""
    return f"{owner}{TENANT_SALT}{_digest(secret, salt)}" if salt else owner


def _digest(secret: bytes, text: str) -> str:
    return hashlib.blake2b(text.encode(), key=secret, digest_size=16).hexdigest()
