"""The time that chat templates are given."""

import time

from protocol.bounds import MAX_SECONDS


def template_time() -> int:
    """Return the time in seconds since 1970. A clock that is wrong by centuries must not make a request invalid."""
    return min(max(int(time.time()), 0), MAX_SECONDS)
