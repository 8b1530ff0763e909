"""A bound on the rate of log lines."""

from collections import Counter
from collections.abc import Callable

from actors.transport.rate_limit import TokenBucket

PER_S = 10.0
BURST = 20


class LogLimit:
    """Allows `BURST` lines of a kind at once and `PER_S` of them each second, so that a flood of events is no flood of
    lines. The kinds must be a closed set: each is remembered."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}
        self._left_out: Counter[str] = Counter()

    def take(self, kind: str) -> int | None:
        """Return the number of lines of the kind that were left out before; None if this one is left out too."""
        bucket = self._buckets.get(kind)
        if bucket is None:
            bucket = self._buckets[kind] = TokenBucket(PER_S, BURST)
        if not bucket.take(1, self._clock()):
            self._left_out[kind] += 1
            return None
        return self._left_out.pop(kind, 0)
