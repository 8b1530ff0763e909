"""The patches of an image, which a request holds while their rows are not computed."""

from collections.abc import Callable, Sequence

from workers.vision.patches import ImagePatches

Parts = Sequence[ImagePatches]
"""The patches of an image, or of each of its tiles."""


class HeldPatches:
    """The patches of one image of a request: released when their rows are computed, and prepared again if these are
    lost.

    Changed by the engine's thread, but for `restore`: that runs on another one, for patches that the engine waits for.
    """

    def __init__(self, parts: Parts, again: Callable[[], Parts] | None = None) -> None:
        """`again` makes the same patches from the file of the image. Without it they are held as long as this is."""
        self._parts: list[ImagePatches | None] = list(parts)
        self._released = [False] * len(parts)
        """The parts that were released since they were expected: the last of what the two threads compare."""
        self._again = again
        self.keys = tuple(part.key for part in parts)
        """See `ImagePatches.key`, of each part."""
        self.offsets = tuple(part.offsets for part in parts)
        """See `ImagePatches.offsets`, of each part."""
        self.patches = tuple(len(part.values) for part in parts)
        """The number of patches of each part."""

    def part(self, index: int) -> ImagePatches | None:
        """Return the patches of a part; None if they were released."""
        return self._parts[index]

    def release(self, index: int) -> None:
        """Release the patches of a part, if they can be prepared again."""
        if self._again is not None:
            self._released[index] = True  # first: `restore` looks at it last
            self._parts[index] = None

    def expect(self) -> None:
        """Keep what the next `restore` prepares, but for parts that are released before it has ended."""
        self._released = [False] * len(self._released)

    def restore(self) -> None:
        """Prepare the patches of all parts again. Raises what preparing an image does, and `RuntimeError` if the
        patches are others than before: the file has not changed."""
        assert self._again is not None, "patches that cannot be prepared again are not released"
        parts = self._again()
        if tuple(part.key for part in parts) != self.keys:
            raise RuntimeError("an image that was prepared again has other pixels than before")
        self._parts = list(parts)
        for index, released in enumerate(self._released):
            if released:  # another sequence's encoding was faster
                self._parts[index] = None
