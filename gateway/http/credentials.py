"""The API key of a request, from its `Authorization` header."""

import base64
import binascii

from starlette.types import Scope


def presented_key(scope: Scope) -> bytes | None:
    """The key as a bearer token or as the password of HTTP basic authentication; None without one."""
    given = [value for name, value in scope["headers"] if name == b"authorization"]
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
