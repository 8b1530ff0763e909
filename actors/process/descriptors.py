"""File descriptors: how many the process may have, and whether some are left.

Without a descriptor libzmq cannot make the threads of a context, and aborts the process (`epoll_t`, which asserts). So
a link is made only where there are some left.
"""

import os
import resource

MOST = 1 << 20
"""More are not asked for: Linux allows no process more than this (fs.nr_open), unless it is set."""
LINK = 16
"""That must be free for a link to be made; it takes 10."""


class NoDescriptors(Exception):
    """Raised when the process has too few descriptors left for what it is about to do. Nothing was done."""


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
