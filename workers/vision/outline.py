"""The text and the number of rows of an image, by which the tokens of a prompt are counted."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ImageOutline:
    """The text and the rows that an image becomes, which follow from its sides alone."""

    text: str
    """Replaces the placeholder in the rendered prompt; has the text of the image token once for each row."""
    counts: tuple[int, ...]
    """The rows of each part, in the order of the runs of the image token: of the image, or of its tiles."""

    @property
    def rows(self) -> int:
        """The rows of all parts."""
        return sum(self.counts)
