"""Drafts tokens of an answer with a constraint: those that it forces, and between them what followed before."""

from collections.abc import Sequence

from workers.engine.request import ConstraintFailed
from workers.engine.sequence import EngineSequence
from workers.engine.speculation.answer_patterns import SIZES, AnswerPatterns

LEAST_CERTAIN = 0.5
"""Certainty of all guessed tokens of a draft together at which it ends."""


class ConstrainedDraft:
    """Implements `Drafter`. A copy of the constraint gets the drafted tokens: it tells which ones are forced, and drops
    those that it does not allow. The text of forced tokens is certain, but the model may write it by other tokens."""

    def __init__(self, sequence: EngineSequence, patterns: AnswerPatterns) -> None:
        """`patterns` are those of the answers of this constraint."""
        self._sequence = sequence
        self._patterns = patterns
        self._first = len(sequence.request.prompt)
        self._learned = self._first
        """The length of the sequence that `patterns` have."""

    def draft(self, most: int) -> Sequence[int]:
        """See `Drafter.draft`."""
        tokens = self._sequence.tokens
        self._patterns.learn(tokens, self._learned, self._first)
        self._learned = len(tokens)
        processors = self._sequence.processors
        constraint = None if processors is None else processors.copied_constraint()
        if constraint is None:
            return ()
        draft: list[int] = []
        last, certainty = tokens[max(self._first, len(tokens) - SIZES[0]) :], 1.0
        try:
            while len(draft) < most:
                added = list(constraint.forced())
                if not added:
                    guess = self._patterns.guess(last)
                    if guess is None or (certainty := certainty * guess.certainty) < LEAST_CERTAIN:
                        break
                    added = [guess.token]
                for token in added:
                    constraint.accept(token)
                draft += added
                last = [*last, *added][-SIZES[0] :]
        except ConstraintFailed:  # the last token that was added is not allowed
            pass
        return draft[:most]
