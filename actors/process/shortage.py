"""What the system has none of at the moment: room on a disk, processes, memory, descriptors. It may have some soon."""

import errno

from actors.process.descriptors import NoDescriptors

PASSING = frozenset({errno.EAGAIN, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENOSPC})


def is_shortage(error: BaseException | None) -> bool:
    """Whether an error, or one that it was raised from, says so. Pure."""
    while error is not None:
        if isinstance(error, NoDescriptors) or getattr(error, "errno", None) in PASSING:
            return True
        error = error.__cause__
    return False
