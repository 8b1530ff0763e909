"""Whether a worker was suspended and left so. Pure: what the kernel says goes in."""


class Suspension:
    """Looks at one process. It tells those that somebody has stopped for good from those that somebody slows down by
    stopping them for moments: these are heard of in between."""

    def __init__(self, limit_s: float) -> None:
        """`limit_s`: how long it may stay suspended."""
        self._limit_s = limit_s
        self._since: float | None = None

    def look(self, suspended: bool, last_frame: float, now: float) -> bool:
        """Whether it has been suspended for too long, `last_frame` being when it was last heard of. Times are of one
        steady clock."""
        if not suspended:
            self._since = None
        elif self._since is None or last_frame > self._since:
            self._since = now
        return self._since is not None and now - self._since >= self._limit_s
