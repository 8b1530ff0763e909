"""The images of one prompt: which of its tokens stand for their rows, and the positions of all. Pure."""

import dataclasses
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.engine.embeddings.image_rows import row_numbers
from workers.engine.images.held_patches import HeldPatches
from workers.vision.patches import ImagePatches


@dataclass(frozen=True, slots=True, eq=False)
class PlacedImage:
    """An image, or a tile of one, whose rows lie side by side in a prompt, or with tokens of text between them."""

    start: int
    """The place of its first row in the prompt."""
    held: HeldPatches
    field: str = ""
    """The request field that errors name."""
    part: int = 0
    """Its index among the parts of `held`."""
    numbers: tuple[int, ...] = dataclasses.field(init=False)
    """The numbers that stand for its rows."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", row_numbers(self.key, len(self.offsets)))

    @property
    def key(self) -> bytes:
        """The digest of all that its rows depend on."""
        return self.held.keys[self.part]

    @property
    def patches(self) -> ImagePatches | None:
        """Its patches; None if they were released."""
        return self.held.part(self.part)

    def release(self) -> None:
        """Release its patches: its rows are computed."""
        self.held.release(self.part)

    @property
    def offsets(self) -> Sequence[int]:
        """The place of each row, counted from the first one; a range if they lie side by side."""
        return self.held.offsets[self.part]

    @property
    def end(self) -> int:
        """The place after its last row."""
        return self.start + self.offsets[-1] + 1

    @property
    def places(self) -> Sequence[int]:
        """The places of its rows in the prompt."""
        if isinstance(self.offsets, range):
            return range(self.start, self.end)
        return [self.start + offset for offset in self.offsets]

    def rows_in(self, start: int, end: int) -> slice:
        """Return which of its rows are in `start .. end` of the prompt."""
        first, last = max(0, start - self.start), min(end, self.end) - self.start
        if isinstance(self.offsets, range):
            return slice(first, last)
        return slice(bisect_left(self.offsets, first), bisect_left(self.offsets, last))


@dataclass(frozen=True, slots=True, eq=False)
class PromptImages:
    """The images of a prompt, which has one at least."""

    images: tuple[PlacedImage, ...]
    """In the order of the prompt. They do not overlap."""
    axes: NDArray[np.int32] | None = None
    """The positions of the prompt's tokens in time, row and column, [3, tokens], for M-RoPE; None where tokens are
    counted."""
    answer: int | None = None
    """With `axes`: the position of the first token of the answer, the same in all three."""

    def release(self) -> None:
        """Release the patches of all images: the rows of the prompt are written."""
        for image in self.images:
            image.release()

    def shift(self, prompt: int) -> int:
        """Return what is added to the place of a token behind a prompt of so many tokens, for its position."""
        return 0 if self.answer is None else self.answer - prompt

    def within(self, start: int, end: int) -> Iterator[PlacedImage]:
        """Iterate over the images of which a row is in `start .. end`."""
        return (image for image in self.images if image.start < end and image.end > start)

    def axes_of(self, start: int, end: int, prompt: int) -> NDArray[np.int32] | None:
        """Return the positions of tokens `start .. end` of a sequence with a prompt of so many tokens, [3, tokens];
        None where tokens are counted."""
        if self.axes is None:
            return None
        behind = np.arange(max(start, prompt), max(end, prompt), dtype=np.int32) + np.int32(self.shift(prompt))
        return np.concatenate([self.axes[:, start:end], np.broadcast_to(behind, (3, len(behind)))], axis=1)

    def ends_of(self, start: int, end: int) -> tuple[int, ...] | None:
        """Return `Chunk.ends` of tokens `start .. end`, where the tokens of an image attend to each other; None without
        an image among them."""
        ends = list(range(start + 1, end + 1))
        for image in self.within(start, end):
            ends[image.start - start : image.end - start] = [image.end] * (image.end - image.start)
        return tuple(ends) if any(self.within(start, end)) else None

    def whole(self, length: int) -> int:
        """Return the length of the longest prefix of up to `length` tokens that splits no image."""
        return next((image.start for image in self.images if image.start < length < image.end), length)

    def through(self, start: int) -> int:
        """Return the end of the image that begins at a token, or the place after the token."""
        return next((image.end for image in self.images if image.start == start), start + 1)
