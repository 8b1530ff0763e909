"""Opens and reads files whose place a device or a pipe may have taken, or that may be too large."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


class NotRegularFile(OSError):
    """Raised for what is no regular file, such as a link to a device or a FIFO."""

    def __init__(self, file: Path) -> None:
        super().__init__(errno.EINVAL, "it is not a regular file", str(file))


class FileTooLarge(OSError):
    """Raised for a file over the bound of its reader."""

    def __init__(self, file: Path, most: int) -> None:
        super().__init__(errno.EFBIG, f"it is over the bound of {most} bytes", str(file))


def read_regular(file: Path, most: int, check: Callable[[os.stat_result], None] = lambda status: None) -> bytes:
    """Read a regular file of at most `most` bytes, whatever size the file system states. `check` gets the status of the
    file that is then read. Raises `NotRegularFile`, `FileTooLarge`, `OSError`, and what `check` raises."""
    with open_regular(file) as stream:
        check(os.fstat(stream.fileno()))
        content = stream.read(most + 1)
    if len(content) > most:
        raise FileTooLarge(file, most)
    return content


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


def open_beneath(root: Path, relative: Path) -> BinaryIO:
    """Open a regular file below a directory to read it, as `open_regular` does, without following any link: one that
    takes the place of a part of `relative` meanwhile leads nowhere. Raises `NotRegularFile` and `OSError`."""
    *folders, name = relative.parts
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            inner = os.open(folder, flags | os.O_DIRECTORY, dir_fd=directory)
            os.close(directory)
            directory = inner
        if not stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            raise NotRegularFile(root / relative)
        stream = os.fdopen(os.open(name, flags, dir_fd=directory), "rb")
    finally:
        os.close(directory)
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise NotRegularFile(root / relative)
    return stream
