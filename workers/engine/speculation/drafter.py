"""Interface of what drafts the next tokens of one sequence."""

from collections.abc import Sequence
from typing import Protocol


class Drafter(Protocol):
    """Drafts tokens of one sequence. A wrong token costs time and changes nothing else."""

    def draft(self, most: int) -> Sequence[int]:
        """Return up to `most` tokens that may follow the tokens so far; none where it has no guess."""
