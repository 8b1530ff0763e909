"""The API key of a request, from its `Authorization` header."""

import base64
import binascii

from starlette.types import Scope


def presented_key(scope: Scope, key_header: bytes = b"") -> bytes | None:
    """The key as a bearer token, as the password of HTTP basic authentication, or else in a header of the dialect's
    own, in lower case; None without one."""
    given = _values(scope, b"authorization")
    if not given and key_header:
        given = _values(scope, key_header)
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


def _values(scope: Scope, header: bytes) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == header]
