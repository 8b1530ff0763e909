"""The API key of a request, from its `Authorization` header."""

import base64
import binascii
from collections.abc import Collection

from starlette.types import Scope


def presented_key(scope: Scope, key_headers: Collection[bytes] = ()) -> bytes | None:
    """The key as a bearer token, as the password of HTTP basic authentication, or else in one of these headers, in
    lower case; None without one."""
    given = _values(scope, [b"authorization"])
    if not given and key_headers:
        given = _values(scope, key_headers)
        return given[0].strip() if len(given) == 1 else None
    if len(given) != 1:
        return None
    scheme, _, credentials = given[0].partition(b" ")
    if scheme.lower() == b"basic":
        # A browser on the chat page sends the key so.
        try:
            credentials = base64.b64decode(credentials.strip(), validate=True).partition(b":")[2]
        except binascii.Error:
            return None
    elif scheme.lower() != b"bearer":
        return None
    return bytes(credentials.strip())


def _values(scope: Scope, headers: Collection[bytes]) -> list[bytes]:
    return [value for name, value in scope["headers"] if name in headers]
