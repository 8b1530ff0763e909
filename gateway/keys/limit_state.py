"""The state of a limit per minute, and its headers."""

import math
from collections.abc import Iterable
from typing import NamedTuple

Headers = list[tuple[bytes, bytes]]


class LimitState(NamedTuple):
    """The state of one limit of a key."""

    kind: bytes
    """`requests` or `tokens`."""
    per_minute: int
    left: int
    full_s: float
    """Seconds until all of it is left, if nothing is used meanwhile."""


def openai_headers(limits: Iterable[LimitState]) -> Headers:
    """The headers of OpenAI's API. The time is a duration as Go writes it."""
    found: Headers = []
    for kind, per_minute, left, full_s in limits:
        seconds = f"{math.ceil(full_s * 1000) / 1000:.3f}".rstrip("0").rstrip(".")
        found += [
            (b"x-ratelimit-limit-%s" % kind, b"%d" % per_minute),
            (b"x-ratelimit-remaining-%s" % kind, b"%d" % left),
            (b"x-ratelimit-reset-%s" % kind, f"{seconds}s".encode()),
        ]
    return found
