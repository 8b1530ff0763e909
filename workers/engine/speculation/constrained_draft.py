"""Drafts tokens of an answer with a constraint: those that it forces, and between them what followed before."""

from collections.abc import Sequence

from workers.engine.request import Constraint, ConstraintFailed
from workers.engine.sequence import EngineSequence
from workers.engine.speculation.answer_patterns import SIZES, AnswerPatterns, Guess

LEAST_CERTAIN = 0.6
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
        last = tokens[max(self._first, len(tokens) - SIZES[0]) :]
        if processors is None or not (processors.forced() or self._guess(last, 1.0)):  # without the cost of a copy
            return ()
        constraint = processors.copied_constraint()
        return () if constraint is None else self._extend(constraint, last, most)

    def _extend(self, constraint: Constraint, last: list[int], most: int) -> list[int]:
        draft: list[int] = []
        certainty = 1.0
        try:
            while len(draft) < most:
                added: Sequence[int] = constraint.forced()
                if not added:
                    guess = self._guess(last, certainty)
                    if guess is None:
                        break
                    certainty *= guess.certainty
                    added = (guess.token,)
                for token in added:
                    constraint.accept(token)
                draft += added
                last = [*last, *added][-SIZES[0] :]
        except ConstraintFailed:  # the last token that was added is not allowed
            pass
        return draft[:most]

    def _guess(self, last: Sequence[int], certainty: float) -> Guess | None:
        """Return what may follow, if it is certain enough after a draft that is it by `certainty`."""
        guess = self._patterns.guess(last)
        return guess if guess is not None and certainty * guess.certainty >= LEAST_CERTAIN else None
