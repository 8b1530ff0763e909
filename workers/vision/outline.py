"""The text and the places of rows of an image, by which the tokens of a prompt are counted."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ImageOutline:
    """The text and the rows that an image becomes, which follow from its sides alone."""

    text: str
    """Replaces the placeholder in the rendered prompt; has the text of the image token once for each row."""
    parts: tuple[Sequence[int], ...]
    """The places of the rows of each part in the prompt, counted from its first one, as in `row_offsets`. Parts are the
    image or its tiles, in the order of `text`."""

    groups: int = 0
    """The groups of patches of which the rows are made; 0 for one each."""

    @property
    def made(self) -> int:
        """The rows that the tower makes."""
        return self.groups or self.rows

    @property
    def largest(self) -> int:
        """The groups of patches of the largest part."""
        return self.groups or max(map(len, self.parts))

    @property
    def rows(self) -> int:
        """The rows of all parts."""
        return sum(map(len, self.parts))


def row_offsets(rows: int, columns: int, breaks: int = 0) -> Sequence[int]:
    """Return the place of each of `rows` x `columns` image tokens in a prompt, counted from the first one, with
    `breaks` tokens of text between two rows. A range if the tokens lie side by side."""
    if not breaks:
        return range(rows * columns)
    return [row * (columns + breaks) + column for row in range(rows) for column in range(columns)]
