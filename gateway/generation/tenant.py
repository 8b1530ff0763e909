"""Tenants: the groups of requests that may share KV."""

import hashlib

from protocol.commands import TENANT_SALT


def tenant_of(key: bytes, salt: str, *, checked: bool = True, fairness_id: str = "") -> str:
    """The tenant of a request: KV is shared by requests with the same API key, the same `cache_salt`, and the same
    fairness id of a trusted gateway.

    It is a digest of the key, which does not reveal it, and behind `TENANT_SALT` one of the salt. Each is empty without
    one. A key that the server has not `checked`, as it has none, counts as a part of the salt: anyone can send any
    number of them, so they keep KV apart and make no new client.
    """
    secret = hashlib.blake2b(key).digest()
    proven = secret if checked else hashlib.blake2b().digest()
    owner = _digest(proven, fairness_id) if (key and checked) or fairness_id else ""
    apart = salt or (key and not checked)
    return f"{owner}{TENANT_SALT}{_digest(secret, salt)}" if apart else owner


def _digest(secret: bytes, text: str) -> str:
    return hashlib.blake2b(text.encode(), key=secret, digest_size=16).hexdigest()
