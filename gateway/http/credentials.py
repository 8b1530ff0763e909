"""What a request's `Authorization` says, in the two ways that Baton takes, and who is one client by it."""

import base64
import binascii
import hashlib

from starlette.types import Scope


def presented_key(scope: Scope) -> bytes | None:
    """The key that the request bears, as a bearer token or as the password of HTTP basic; None when there is none."""
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(given) != 1:
        return None
    scheme, _, credentials = given[0].partition(b" ")
    if scheme.lower() == b"basic":
        # How a browser on the chat page sends the key: as a password.
        try:
            credentials = base64.b64decode(credentials.strip(), validate=True).partition(b":")[2]
        except binascii.Error:
            return None
    elif scheme.lower() != b"bearer":
        return None
    return bytes(credentials.strip())


def tenant_of(key: bytes, salt: str) -> str:
    """Who shares KV: those that show the same key, needed or not, and ask with the same `cache_salt`.

    A digest, from which nobody can tell the key, and which no salt can imitate; empty where there is neither.
    """
    if not key and not salt:
        return ""
    digest = hashlib.blake2b(salt.encode(), key=hashlib.blake2b(key).digest(), digest_size=16)
    return digest.hexdigest()
