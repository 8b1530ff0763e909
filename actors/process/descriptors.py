"""File descriptors: how many the process may have, and how many of them it keeps for itself.

Without a descriptor libzmq cannot make the threads of a context, and aborts the process (`epoll_t`, which asserts). So
a link is made only where there are some left, and connections of clients and pending peers never take the last ones.
The rule for them needs no counting: a new descriptor has the lowest number that is free (POSIX, open(2)), so a number
from the upper end is given only when all below it are taken.
"""

import os
import resource
from dataclasses import dataclass

MOST = 1 << 20
"""More are not asked for: Linux allows no process more than this (fs.nr_open), unless it is set."""
LINK = 16
"""That must be free for a link to be made; it takes 10."""
WORKER = 24
"""That a worker process takes at most: its link, its pipes, and those to start it."""
REMOTE_WORKER = 16
"""That the connection of a remote worker takes: itself, a link, and the proxy between the two."""
OWN = 64
"""Of the event loop, the log, listening sockets, and files that are read and closed."""


class NoDescriptors(Exception):
    """Raised when the process has too few descriptors left for what it is about to do. Nothing was done."""


@dataclass(frozen=True, slots=True)
class Descriptors:
    """The descriptors of a gateway. At least half of them are for connections."""

    limit: int
    """That the process may have."""
    kept: int
    """The upper ones of them, that no connection gets."""
    remote_workers: int
    """Connections of remote workers, at once, for which those that are kept suffice; at least 1."""

    @classmethod
    def plan(cls, limit: int, workers: int, remote_workers: int = 0) -> "Descriptors":
        """For so many worker processes, and at most so many connections of remote workers at once."""
        base = OWN + WORKER * workers
        kept = min(base + REMOTE_WORKER * remote_workers, limit // 2)
        return cls(limit, kept, min(remote_workers, max(1, (kept - base) // REMOTE_WORKER)))

    @property
    def first_kept(self) -> int:
        """The lowest number that is kept."""
        return self.limit - self.kept


def raise_limit() -> int:
    """Let the process have as many descriptors as its hard limit allows (`MOST` at most). How many these are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(MOST, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):
            return soft  # a system with a limit beside the hard one, as macOS has
        return wanted
    return MOST if soft == resource.RLIM_INFINITY else soft


def check_free(count: int) -> None:
    """Raises `NoDescriptors` unless so many could be had now. They are had for that moment, so nothing is guessed."""
    tried: list[int] = []
    try:
        first = os.open(os.devnull, os.O_RDONLY)
        tried.append(first)
        tried.extend(os.dup(first) for _ in range(count - 1))
    except OSError as error:
        raise NoDescriptors(f"fewer than {count} file descriptors are left: {error.strerror}") from error
    finally:
        for each in tried:
            os.close(each)
