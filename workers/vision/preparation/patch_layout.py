"""The patches of an image in the order in which a tower computes them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from workers.vision.patches import ImagePatches
from workers.vision.preparation.pixel_values import PixelValues


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
    breaks: int = 0
    """Tokens of text between two rows of tokens in a prompt."""

    @property
    def multiple(self) -> int:
        """Pixels of a side of one token, which divide the sides of an image."""
        return self.patch * self.merge

    def tokens(self, width: int, height: int) -> tuple[int, int]:
        """Return the rows and columns of tokens of an image."""
        return height // self.multiple, width // self.multiple

    def split(self, picture: Pillow.Image, values: PixelValues, key: bytes) -> ImagePatches:
        """Split an RGB image. The rest on the right and below is left out."""
        rows, columns = self.tokens(*picture.size)
        merge, patch = self.merge, self.patch
        pixels = np.asarray(picture)[: rows * self.multiple, : columns * self.multiple]
        blocks = pixels.reshape(rows, merge, patch, columns, merge, patch, 3).transpose(0, 3, 1, 4, 2, 5, 6)
        blocks = blocks.reshape(rows * columns, merge * merge, patch, patch, 3)
        places = np.stack(np.divmod(np.arange(rows * columns)[:, None], columns), axis=-1) * merge
        places = places + np.stack(np.divmod(np.arange(merge * merge), merge), axis=-1)
        order = windows = None
        if self.window:
            chosen, numbers = self._windows(rows, columns)
            blocks, places = blocks[chosen], places[chosen]
            windows = np.repeat(numbers, merge * merge).astype(np.int32)
            order = np.argsort(chosen).astype(np.int32)
        return ImagePatches(
            values=self._numbers(blocks.reshape(-1, patch, patch, 3), values),
            grid=(rows * merge, columns * merge),
            places=np.ascontiguousarray(places.reshape(-1, 2), np.int32),
            key=key,
            windows=windows,
            order=order,
            tokens=(rows, columns),
            breaks=self.breaks,
        )

    def _numbers(self, patches: NDArray[np.uint8], values: PixelValues) -> NDArray[np.float32]:
        """Return the numbers of patches, uint8 [patches, rows, columns, 3], in their order."""
        count, patch = len(patches), self.patch
        if not self.channels_first:
            out = np.empty((count, patch, patch, 3), np.float32)
            for channel in range(3):
                out[..., channel] = values.table[channel][patches[..., channel]]
            return out.reshape(count, -1)
        out = np.empty((count, 3, self.frames, patch, patch), np.float32)
        for channel in range(3):
            out[:, channel] = values.table[channel][patches[..., channel]][:, None]
        return out.reshape(count, -1)

    def _windows(self, rows: int, columns: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the tokens ordered by windows, and the window of each. After `get_vision_window_index` of
        transformers."""
        row, column = np.divmod(np.arange(rows * columns), columns)
        across = -(-columns // self.window)
        numbers = row // self.window * across + column // self.window
        chosen = np.argsort(numbers, kind="stable")
        return chosen, numbers[chosen]
