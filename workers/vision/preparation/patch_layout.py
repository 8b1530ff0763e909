"""The patches of an image in the order in which a tower computes them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.vision.patches import ImagePatches


@dataclass(frozen=True, slots=True)
class PatchLayout:
    """The sizes and the order of patches."""

    patch: int
    """Pixels of a side of a patch."""
    merge: int
    """Patches of a side of the square of which one token is made."""
    channels_first: bool
    """The numbers of a patch are ordered by channel, then row and column; otherwise the channel comes last."""
    frames: int = 1
    """Frames of a patch, which an image is repeated in."""
    window: int = 0
    """Tokens of a side of a window of attention; 0 for none."""

    @property
    def multiple(self) -> int:
        """Pixels of a side of one token, which divide the sides of an image."""
        return self.patch * self.merge

    def tokens(self, width: int, height: int) -> tuple[int, int]:
        """Return the rows and columns of tokens of an image."""
        return height // self.multiple, width // self.multiple

    def split(self, pixels: NDArray[np.float32], key: bytes) -> ImagePatches:
        """Split an image, float32 [height, width, 3], whose sides are multiples of those of a token."""
        height, width, _ = pixels.shape
        rows, columns = self.tokens(width, height)
        merge, patch = self.merge, self.patch
        blocks = pixels.reshape(rows, merge, patch, columns, merge, patch, 3).transpose(0, 3, 1, 4, 2, 5, 6)
        blocks = blocks.reshape(rows * columns, merge * merge, patch, patch, 3)
        places = np.stack(np.divmod(np.arange(rows * columns)[:, None], columns), axis=-1) * merge
        inner = np.stack(np.divmod(np.arange(merge * merge), merge), axis=-1)
        places = places + inner
        order = windows = None
        if self.window:
            chosen, numbers = self._windows(rows, columns)
            blocks, places = blocks[chosen], places[chosen]
            windows = np.repeat(numbers, merge * merge).astype(np.int32)
            order = np.argsort(chosen).astype(np.int32)
        return ImagePatches(
            values=self._values(blocks),
            grid=(rows * merge, columns * merge),
            places=np.ascontiguousarray(places.reshape(-1, 2), np.int32),
            key=key,
            windows=windows,
            order=order,
            tokens=(rows, columns),
        )

    def _values(self, blocks: NDArray[np.float32]) -> NDArray[np.float32]:
        """Order the numbers of patches, [tokens, merge * merge, patch, patch, 3]."""
        flat = blocks.reshape(-1, self.patch, self.patch, 3)
        if not self.channels_first:
            return np.ascontiguousarray(flat.reshape(len(flat), -1))
        channels = flat.transpose(0, 3, 1, 2)[:, :, None]
        shape = (len(flat), 3, self.frames, self.patch, self.patch)
        return np.ascontiguousarray(np.broadcast_to(channels, shape)).reshape(len(flat), -1)

    def _windows(self, rows: int, columns: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the tokens ordered by windows, and the window of each. After `get_vision_window_index` of
        transformers."""
        row, column = np.divmod(np.arange(rows * columns), columns)
        across = -(-columns // self.window)
        numbers = row // self.window * across + column // self.window
        chosen = np.argsort(numbers, kind="stable")
        return chosen, numbers[chosen]
