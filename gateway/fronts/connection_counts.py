"""The open connections of all fronts, in memory that they share: so many may be open in all, whichever front has them.

Each front writes its own number alone, without a lock: fronts that accept at the same moment may each take one beyond a
bound.
"""

import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

_BYTES = 4
"""Size of a number, which is written at once."""


class ConnectionCounts:
    """The numbers by front."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._numbers = memoryview(mmap.mmap(descriptor, os.fstat(descriptor).st_size)).cast("I")

    @classmethod
    @contextmanager
    def made(cls, fronts: int) -> Iterator["ConnectionCounts"]:
        """Those of so many fronts, in a file without a name. It is written before it is mapped: a page for which a disk
        has no room later would end the process that writes to it (SIGBUS)."""
        with _nameless_file() as file:
            file.write(bytes(fronts * _BYTES))
            yield cls(file.fileno())

    def note(self, front: int, count: int) -> None:
        """Note the number of a front; 0 when it is lost."""
        self._numbers[front] = count

    def others(self, front: int) -> int:
        """Return the number of all the others."""
        return sum(self._numbers) - self._numbers[front]


def _nameless_file() -> BinaryIO:
    """A file in memory, or, where the system has none, in the folder for temporary files."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("baton-connections"), "wb", buffering=0)
    return tempfile.TemporaryFile(buffering=0)
