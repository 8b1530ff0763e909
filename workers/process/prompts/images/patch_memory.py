"""Bounds the memory of the patches of images in prompts that wait or run."""

import weakref
from collections import deque

import numpy as np
from numpy.typing import NDArray

MAX_PATCH_BYTES = 1_000_000_000
"""Bytes of the patches of all prompts together, but for a prompt that is alone."""


class PatchMemory:
    """Counts the bytes of patches until nothing refers to them any more, on whichever thread that is."""

    def __init__(self, max_bytes: int = MAX_PATCH_BYTES) -> None:
        self.max_bytes = max_bytes
        self._used = 0
        self._freed: deque[int] = deque()
        """Bytes that were freed since `used` was read: a finalizer must not wait for a lock."""

    @property
    def used(self) -> int:
        """Bytes in use."""
        while self._freed:
            self._used -= self._freed.popleft()
        return self._used

    def fits(self, more: int) -> bool:
        """Return whether so many bytes more are within the bound, or would be alone."""
        used = self.used
        return not used or used + more <= self.max_bytes

    def hold(self, values: NDArray[np.float32]) -> None:
        """Count an array until it is freed."""
        self._used += values.nbytes
        weakref.finalize(values, self._freed.append, values.nbytes).atexit = False
