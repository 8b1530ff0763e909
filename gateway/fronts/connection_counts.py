"""The open connections of all fronts, in memory that they share: so many may be open in all, whichever front has them.

Each front writes its own number alone, without a lock: fronts that accept at the same moment may each take one beyond a
bound.
"""

import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

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
        """Those of so many fronts, in a file without a name."""
        with tempfile.TemporaryFile() as file:
            file.truncate(fronts * _BYTES)
            yield cls(file.fileno())

    def note(self, front: int, count: int) -> None:
        """Note the number of a front; 0 when it is lost."""
        self._numbers[front] = count

    def others(self, front: int) -> int:
        """Return the number of all the others."""
        return sum(self._numbers) - self._numbers[front]
