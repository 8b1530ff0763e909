"""Drafts the tokens that the constraint of an answer forces."""

from collections.abc import Sequence

from workers.engine.logits_processors import LogitsProcessors


class ForcedTokens:
    """Implements `Drafter`. The text is certain, but the model may write it by other tokens."""

    def __init__(self, processors: LogitsProcessors) -> None:
        """`processors` are those of the sequence."""
        self._processors = processors

    def draft(self, most: int) -> Sequence[int]:
        """See `Drafter.draft`."""
        return self._processors.forced()[:most]
