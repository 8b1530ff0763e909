"""Tenants: the groups of requests that may share KV."""

import hashlib


def tenant_of(key: bytes, salt: str) -> str:
    """The tenant of a request: KV is shared by requests with the same API key and the same `cache_salt`.

    It is a digest, which does not reveal the key and which no salt can imitate. Empty without a key and a salt.
    """
    if not key and not salt:
        return ""
    digest = hashlib.blake2b(salt.encode(), key=hashlib.blake2b(key).digest(), digest_size=16)
    return digest.hexdigest()
