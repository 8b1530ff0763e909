"""Prepares images once more, for prompts whose rows were lost after their patches had been released."""

from concurrent.futures import Future, ThreadPoolExecutor, wait

from workers.engine.images.held_patches import HeldPatches


class PatchRestorer:
    """Prepares one image at a time, on a thread that exists from the first one on: it takes up to a second, and steps
    go on meanwhile. Used by the engine's thread."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._held: HeldPatches | None = None
        self._future: Future[None] | None = None
        self.restored = 0
        """Images that were prepared again."""

    def begin(self, held: HeldPatches) -> None:
        """Begin to prepare patches, unless others are being prepared: call it again later. Raises the error of an image
        that could not be prepared."""
        if self._future is not None:
            if not self._future.done():
                return
            done, future = self._held, self._future
            self._held = self._future = None
            if done is held:
                self.restored += 1
                future.result()
                return
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "restore-patches")
        self._held, self._future = held, self._executor.submit(held.restore)

    def wait(self, seconds: float) -> None:
        """Wait until the image is prepared, or for so long."""
        if self._future is not None:
            wait([self._future], timeout=seconds)

    def close(self) -> None:
        """End the thread, after the image that it prepares."""
        if self._executor is not None:
            self._executor.shutdown()
