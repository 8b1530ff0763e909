"""The rows of an image that is packed: made of the rows of its tiles and of the whole image, as LLaVA-OneVision does.

A tower computes the whole image and its tiles, each with the same number of rows. The rows of the whole image come
first. Those of the tiles are put together to one grid, rows and columns of padding are left out, the grid is resampled
if it is too large, and an embedding of the checkpoint ends each of its rows.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
SLACK = 1.1
"""A grid is resampled if each of its sides is so many times too long."""


@dataclass(frozen=True, slots=True, eq=False)
class RowPacking:
    """The rows of a prompt as weighted sums of rows of a tower."""

    sources: NDArray[np.int32]
    """[tokens, 1 or 4]; the number behind the tower's rows is the embedding at the end of a row of the grid."""
    weights: Floats
    """[tokens, 1 or 4]."""

    def pack(self, made: Floats, newline: Floats) -> Floats:
        """Return the rows of a prompt, [tokens, width], made of a tower's, [rows, width], and the embedding at the end
        of a row, [width]."""
        whole = np.concatenate([made, newline[None]])
        total: Floats = whole[self.sources[:, 0]] * self.weights[:, :1]
        for tap in range(1, self.sources.shape[1]):
            total += whole[self.sources[:, tap]] * self.weights[:, tap, None]
        return total


@dataclass(frozen=True, slots=True)
class TileGrid:
    """The rows of a whole image and of a grid of tiles: `pack_image_features` of transformers' LLaVA-OneVision."""

    side: int
    """Rows and columns of the tower's rows of each tile."""
    rows: int = 0
    """Rows of tiles; 0 if there is the whole image alone, behind whose rows is one embedding of an end."""
    columns: int = 0
    top: int = 0
    """Rows of the grid above the image, which are left out, and as many below it."""
    left: int = 0
    """The same of columns."""
    most: int = 1
    """The grid is resampled to about so many times the rows of a tile if it has more."""

    @classmethod
    def around(cls, side: int, rows: int, columns: int, width: int, height: int, most: int) -> "TileGrid":
        """Return the grid of an image of `width` x `height` pixels that is padded on two sides to the tiles' ratio."""
        high, wide = rows * side, columns * side
        if width / height > wide / high:
            return cls(side, rows, columns, top=(high - int(round(height * (wide / width), 7))) // 2, most=most)
        return cls(side, rows, columns, left=(wide - int(round(width * (high / height), 7))) // 2, most=most)

    @property
    def tiles(self) -> int:
        """The images that the tower computes: the whole one, and the tiles."""
        return 1 + self.rows * self.columns

    @property
    def count(self) -> int:
        """The rows of the prompt."""
        high, wide = self._resampled()
        return self.side**2 + (high * (wide + 1) if self.rows else 1)

    def packing(self) -> RowPacking:
        """Return how the rows of the prompt are made."""
        whole = np.arange(self.side**2, dtype=np.int32)[:, None]
        newline = self.side**2 * self.tiles
        if not self.rows:
            sources = np.concatenate([whole, [[newline]]]).astype(np.int32)
            return RowPacking(sources, np.ones(sources.shape, np.float32))
        grid, weights = self._taps()
        taps = grid.shape[-1]
        ends = np.zeros((len(grid), 1, taps))
        grid = np.concatenate([grid, ends + newline], axis=1).reshape(-1, taps)
        weights = np.concatenate([weights, ends + (np.arange(taps) == 0)], axis=1).reshape(-1, taps)
        whole = np.repeat(whole, taps, axis=1)
        first = np.broadcast_to(np.arange(taps) == 0, whole.shape)
        return RowPacking(
            np.concatenate([whole, grid]).astype(np.int32), np.concatenate([first, weights]).astype(np.float32)
        )

    def _cropped(self) -> tuple[int, int]:
        return self.rows * self.side - 2 * self.top, self.columns * self.side - 2 * self.left

    def _resampled(self) -> tuple[int, int]:
        """Return rows and columns of the grid in the prompt, without the ends of rows."""
        high, wide = self._cropped()
        ratio = math.sqrt(high * wide / (self.most * self.side**2))
        return (max(1, int(high // ratio)), max(1, int(wide // ratio))) if ratio > SLACK else (high, wide)

    def _taps(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the tower's rows of each place of the grid in the prompt, [rows, columns, taps], and their weights."""
        side = self.side
        numbers = side**2 + np.arange(self.rows * self.columns * side**2)
        tiles = numbers.reshape(self.rows, self.columns, side, side)
        grid = tiles.transpose(0, 2, 1, 3).reshape(self.rows * side, self.columns * side)
        high, wide = self._cropped()
        grid = grid[self.top : self.top + high, self.left : self.left + wide]
        if self._resampled() == (high, wide):
            return grid[..., None], np.ones((high, wide, 1))
        (upper, lower, down), (left, right, across) = (
            _linear(size, new) for size, new in zip((high, wide), self._resampled(), strict=True)
        )
        sources = [grid[np.ix_(row, column)] for row in (upper, lower) for column in (left, right)]
        weights = [np.outer(row, column) for row in (1 - down, down) for column in (1 - across, across)]
        return np.stack(sources, axis=-1), np.stack(weights, axis=-1)


def _linear(size: int, new: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Place `new` points on an axis of `size`, as torch's bilinear `interpolate` without aligned corners: the points
    before and behind each, and the weights of the latter."""
    scale = np.float32(size) / np.float32(new)
    source = np.maximum(0, (np.arange(new, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5))
    before = np.floor(source).astype(np.int64)
    return before, np.minimum(before + 1, size - 1), source - before
