"""Markers of a model's vocabulary: added tokens that structure a conversation."""

import re

_MARKER = re.compile(r"[<\[◁](?:\S+)[>\]▷]|<\S*｜\S*|｜\S+｜")


def is_marker(text: str) -> bool:
    """Return whether the text of an added token may be a marker. Others, such as white space, are tokens for their
    frequency."""
    return _MARKER.fullmatch(text) is not None
