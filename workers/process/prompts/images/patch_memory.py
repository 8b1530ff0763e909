"""Bounds the memory of the images in prompts that wait or run: their patches, and their files."""

import weakref
from collections import deque

MAX_PATCH_BYTES = 1_000_000_000
"""Bytes of the patches and files of all prompts together, but for a prompt that is alone."""


class PatchMemory:
    """Counts bytes until nothing refers to their owner any more. `hold` may be called on any thread, and an owner be
    freed on any."""

    def __init__(self, max_bytes: int = MAX_PATCH_BYTES) -> None:
        self.max_bytes = max_bytes
        self._used = 0
        self._changes: deque[int] = deque()
        """Bytes that were held, or freed, since `used` was read: a finalizer must not wait for a lock."""

    @property
    def used(self) -> int:
        """Bytes in use. Read by one thread at a time."""
        while self._changes:
            self._used += self._changes.popleft()
        return self._used

    def fits(self, more: int) -> bool:
        """Return whether so many bytes more are within the bound, or would be alone."""
        used = self.used
        return not used or used + more <= self.max_bytes

    def hold(self, owner: object, nbytes: int) -> None:
        """Count bytes until their owner is freed."""
        self._changes.append(nbytes)
        weakref.finalize(owner, self._changes.append, -nbytes).atexit = False
