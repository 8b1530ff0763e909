"""Prepares images once more, for prompts whose rows were lost after their patches had been released."""

import weakref
from concurrent.futures import Future, ThreadPoolExecutor, wait

from workers.engine.images.held_patches import HeldPatches


class PatchRestorer:
    """Prepares one image at a time, on a thread that exists from the first one on: it takes up to a second, and steps
    go on meanwhile. Used by the engine's thread."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._held: weakref.ref[HeldPatches] | None = None
        """The patches that are prepared, unless their request has ended."""
        self._future: Future[None] | None = None

    def begin(self, held: HeldPatches) -> bool:
        """Begin to prepare patches, and return True; False if others are being prepared, or these. Called again, it
        raises the error of an image that could not be prepared."""
        if self._future is not None:
            if not self._future.done():
                return False
            done, future = self._held, self._future
            self._held = self._future = None
            if done is not None and done() is held:
                future.result()
                return False
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "restore-patches")
        held.expect()
        self._held, self._future = weakref.ref(held), self._executor.submit(held.restore)
        return True

    def wait(self, seconds: float) -> None:
        """Wait until the image is prepared, or for so long."""
        if self._future is not None:
            wait([self._future], timeout=seconds)

    def close(self) -> None:
        """End the thread, after the image that it prepares."""
        if self._executor is not None:
            self._executor.shutdown()
