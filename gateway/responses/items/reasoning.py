"""Reasoning as clients send it back.

`encrypted_content` lets a client that stores nothing here return the reasoning of an earlier answer. The reasoning is
readable in the same item, so it is only encoded, not encrypted.
"""

import base64
import binascii

_MARK = "baton1."


def encode_reasoning(text: str) -> str:
    """The `encrypted_content` of an item with this reasoning."""
    return _MARK + base64.b64encode(text.encode()).decode()


def decode_reasoning(content: str) -> str | None:
    """The reasoning of an `encrypted_content`; None if it was not made by `encode_reasoning`."""
    if not content.startswith(_MARK):
        return None
    try:
        return base64.b64decode(content.removeprefix(_MARK), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
