"""The headers of Anthropic's API about the limits of a key."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from gateway.keys.limit_state import Headers, LimitState


def anthropic_headers(limits: Iterable[LimitState]) -> Headers:
    """The time at which all of a limit is left again is in the format of RFC 3339, rounded up to a second."""
    found: Headers = []
    for kind, per_minute, left, full_s in limits:
        full_at = datetime.now(UTC) + timedelta(seconds=full_s)
        if full_at.microsecond:
            full_at = full_at.replace(microsecond=0) + timedelta(seconds=1)
        found += [
            (b"anthropic-ratelimit-%s-limit" % kind, b"%d" % per_minute),
            (b"anthropic-ratelimit-%s-remaining" % kind, b"%d" % left),
            (b"anthropic-ratelimit-%s-reset" % kind, f"{full_at:%Y-%m-%dT%H:%M:%SZ}".encode()),
        ]
    return found
