"""The file descriptors that a gateway reserves for its workers and itself.

Connections of clients and pending peers never take the last ones. The rule for them needs no counting: a new descriptor
has the lowest number that is free (POSIX, open(2)), so a number from the upper end is given only when all below it are
taken.
"""

from dataclasses import dataclass

WORKER = 24
"""Maximum of a worker process: its link, its pipes, and those to start it."""
REMOTE_WORKER = 16
"""For the connection of a remote worker: itself, a link, and the proxy between the two."""
OWN = 64
"""For the event loop, the log, listening sockets, and files that are read and closed."""


@dataclass(frozen=True, slots=True)
class Descriptors:
    """The descriptors of a gateway. At least half of them are for connections."""

    limit: int
    """The limit of the process."""
    kept: int
    """The upper ones of them, that no connection gets."""
    remote_workers: int
    """Connections of remote workers, at once, for which those that are kept suffice; at least 1."""

    @classmethod
    def plan(cls, limit: int, workers: int, remote_workers: int = 0) -> "Descriptors":
        """Plan for that many worker processes, and that many connections of remote workers at once."""
        base = OWN + WORKER * workers
        kept = min(base + REMOTE_WORKER * remote_workers, limit // 2)
        return cls(limit, kept, min(remote_workers, max(1, (kept - base) // REMOTE_WORKER)))

    @property
    def first_kept(self) -> int:
        """The lowest number that is kept."""
        return self.limit - self.kept
