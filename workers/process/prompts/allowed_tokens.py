"""Constraints that the tokens of `Sampling.allowed_tokens` make, alone and together with a grammar."""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ErrorCode
from protocol.request import Sampling
from workers.engine.logits_processors import AllowedTokens
from workers.engine.request import Constraint, ConstraintFailed
from workers.process.prompts.refusal import PromptRefused

FIELD = "allowed_token_ids"


def check_allowed(sampling: Sampling, vocab_size: int) -> None:
    """Raise `PromptRefused` for a token outside of the vocabulary."""
    wrong = next((token for token in sampling.allowed_tokens if token >= vocab_size), None)
    if wrong is not None:
        raise PromptRefused(ErrorCode.INVALID, f"`{FIELD}` has token {wrong}, the vocabulary has {vocab_size}", FIELD)


def restricted(
    constraint: Constraint | None, sampling: Sampling, eos: Collection[int], vocab_size: int
) -> Constraint | None:
    """Return the constraint of a request, with its allowed tokens. `eos` end its answer."""
    if not sampling.allowed_tokens:
        return constraint
    allowed = AllowedTokens(sampling.allowed_tokens, vocab_size)
    if constraint is None:
        return allowed
    return RestrictedConstraint(constraint, allowed, AllowedTokens(eos, vocab_size) if eos else None)


class RestrictedConstraint:
    """Implements `workers.engine.request.Constraint`: a constraint, in which only the allowed tokens may be used."""

    def __init__(self, constraint: Constraint, allowed: AllowedTokens, eos: AllowedTokens | None) -> None:
        self._constraint = constraint
        self._allowed = allowed
        self._eos = eos

    def accept(self, token: int) -> None:
        """Append a token. Raises `ConstraintFailed`."""
        self._constraint.accept(token)

    def fork(self) -> "RestrictedConstraint | None":
        """See `Constraint.fork`."""
        fork = self._constraint.fork()
        return None if fork is None else RestrictedConstraint(fork, self._allowed, self._eos)

    def forced(self) -> Sequence[int]:
        """See `Constraint.forced`."""
        return self._constraint.forced()

    @property
    def ended(self) -> None:
        """Only the mask shows whether the answer is complete: the allowed tokens may leave nothing else."""

    def mask(self) -> NDArray[np.uint32]:
        """Return the tokens that may follow. There are none when the answer is complete: also when it may end, and none
        of the allowed tokens would continue it.

        Raises `ConstraintFailed` if none of the allowed tokens continues an answer that is not complete.
        """
        words = self._constraint.mask()
        if words is None:
            return self._allowed.mask()
        both = words & self._allowed.mask()
        may_end = not words.any() or (self._eos is not None and (words & self._eos.mask()).any())
        if not both.any() and not may_end:
            text = f"none of the tokens of `{FIELD}` may follow: the constraint of the answer needs others"
            raise ConstraintFailed(text, FIELD)
        return both
