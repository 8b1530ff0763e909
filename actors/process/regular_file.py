"""Opens files whose place a device or a pipe may have taken."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


class NotRegularFile(OSError):
    """Raised for what is no regular file, such as a link to a device or a FIFO."""

    def __init__(self, file: Path) -> None:
        super().__init__(errno.EINVAL, "it is not a regular file", str(file))


def open_regular(file: Path) -> BinaryIO:
    """Open a regular file to read it. Never waits, and never opens a device. Raises `NotRegularFile` and `OSError`."""
    if not stat.S_ISREG(file.stat().st_mode):  # opening a device may have an effect
        raise NotRegularFile(file)
    # Without O_NONBLOCK, opening a FIFO that has taken the file's place since waits for a writer.
    stream = os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise NotRegularFile(file)
    return stream
