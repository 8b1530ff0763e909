"""The input of a vision tower, as preprocessing makes it of an image."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from workers.vision.outline import row_offsets
from workers.vision.packing import RowPacking


@dataclass(frozen=True, slots=True, eq=False)
class ImagePatches:
    """The patches of one image, or of one tile of it, in the order in which a tower computes them: the
    `VisionConfig.group` patches of which one token is made lie one after the other, and so do those of a window."""

    values: NDArray[np.float32]
    """Normalized pixels, [patches, patch_values], each patch in the order of the weights of the patch embedding."""
    grid: tuple[int, int]
    """Rows and columns of patches in the image."""
    places: NDArray[np.int32]
    """The row and the column of each patch, [patches, 2]."""
    key: bytes
    """A digest of all that the rows of embeddings depend on: pixels, preprocessing and checkpoint."""
    windows: NDArray[np.int32] | None = None
    """The window of each patch, in rising order, [patches]: layers with windowed attention attend within it. None if
    the tower has no such layer."""
    order: NDArray[np.int32] | None = None
    """The group whose token belongs at each place of the prompt, [tokens]. None if they are in order."""
    tokens: tuple[int, int] = (0, 0)
    """Rows and columns of tokens, for positions in the prompt; their product is the number of tokens."""
    breaks: int = 0
    """Tokens of text between two rows of tokens in a prompt (Pixtral's end of a row)."""
    packing: RowPacking | None = None
    """Makes the rows of the prompt of those of groups; None if they are the same but for their order."""

    @property
    def count(self) -> int:
        """The number of tokens, each a row of embeddings."""
        return self.tokens[0] * self.tokens[1]

    def arranged(self, made: NDArray[np.float32], newline: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """Return the rows of the prompt, [tokens, width], made of those of groups. Packed images need `newline`, the
        embedding at the end of a row, [width]."""
        if self.packing is not None:
            assert newline is not None, "the tower of packed images has one"
            return self.packing.pack(made, newline)
        return made if self.order is None else np.ascontiguousarray(made[self.order])

    def fits(self, groups: int) -> bool:
        """Return whether the rows of so many groups make the image's tokens."""
        if self.packing is None:
            return groups == self.count
        return len(self.packing.sources) == self.count and int(self.packing.sources.max(initial=0)) <= groups

    def runs(self, most: int) -> list["ImagePatches"]:
        """Divide an image whose windows attend to themselves alone into runs of whole windows, of up to `most` patches
        each, in order. They have the patches of the image, and nothing of its tokens.

        Raises `ValueError` for a window of more patches.
        """
        if self.windows is None or len(self.values) <= most:
            return [self]
        edges = [*np.flatnonzero(np.diff(self.windows, prepend=self.windows[0] - 1)).tolist(), len(self.values)]
        begins = [0]
        for begin, end in pairwise(edges):
            if end - begin > most:
                raise ValueError(f"windows: one has {end - begin} patches, the tower takes {most}")
            if end - begins[-1] > most:
                begins.append(begin)
        return [self._part(slice(begin, end)) for begin, end in pairwise([*begins, len(self.values)])]

    def _part(self, rows: slice) -> "ImagePatches":
        windows = None if self.windows is None else self.windows[rows]
        return replace(
            self, values=self.values[rows], places=self.places[rows], windows=windows, order=None, packing=None
        )

    @property
    def offsets(self) -> Sequence[int]:
        """The place of each token in a prompt, counted from the first one; a range if they lie side by side."""
        return row_offsets(*self.tokens, self.breaks)
