"""The state of one answer in its grammar."""

import time
from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from workers.engine.request import ConstraintFailed
from workers.grammar.checker import dead_end

MASK_CPU_S = 0.25
"""Processor time of one token or mask after which an answer ends: other sequences wait for it."""


class GrammarMatcher:
    """Implements `workers.engine.request.Constraint`. A function of the accepted tokens alone."""

    def __init__(self, matcher: LLMatcher, eos: NDArray[np.uint32], field: str, *, ignore_eos: bool) -> None:
        """Takes a new `matcher`. `eos` is the mask of end-of-sequence tokens, none of which may be sampled with
        `ignore_eos`: the answer is complete only where nothing else may follow. Errors name `field`."""
        self._matcher = matcher
        self._eos = eos
        self._ignore_eos = ignore_eos
        self._field = field
        self._accepted = 0
        self._clock = time.thread_time

    def accept(self, token: int) -> None:
        """Append a token. Raises `ConstraintFailed` if the grammar does not allow it."""
        began = self._clock()
        self._accepted += 1
        if not self._matcher.consume_token(token):
            raise self._failed(dead_end(self._matcher.get_error()) or f"token {token} is not part of it")
        self._check_time(began)

    def fork(self) -> "GrammarMatcher":
        """See `Constraint.fork`. Takes about a microsecond. A copy reads a clock that costs less: if it waits for the
        processor for long, only a draft ends."""
        fork = GrammarMatcher(self._matcher.deep_copy(), self._eos, self._field, ignore_eos=self._ignore_eos)
        fork._accepted, fork._clock = self._accepted, time.perf_counter
        return fork

    def forced(self) -> Sequence[int]:
        """See `Constraint.forced`."""
        if self._matcher.is_error() or self._matcher.is_stopped():
            return ()
        return self._matcher.compute_ff_tokens()

    @property
    def ended(self) -> bool | None:
        """See `Constraint.ended`."""
        if self._ignore_eos or self._matcher.is_error():
            return None
        return self._matcher.is_stopped()

    def mask(self) -> NDArray[np.uint32]:
        """Return the tokens that may follow; none when the answer is complete.

        Raises `ConstraintFailed` if no token may follow and the answer is not complete.
        """
        began = self._clock()
        words = np.zeros_like(self._eos)
        if self._matcher.is_stopped() and not self._matcher.is_error():
            return words
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._check_time(began)
        if self._matcher.is_error():
            raise self._failed(dead_end(self._matcher.get_error()))
        if not words.any():
            raise self._failed("it allows no further token")
        # Where only an end-of-sequence token may follow, the answer is complete without it.
        others = words & ~self._eos
        return words if others.any() and not self._ignore_eos else others

    def _check_time(self, began: float) -> None:
        if self._clock() - began > MASK_CPU_S:
            raise self._failed("it takes too long")

    def _failed(self, problem: str) -> ConstraintFailed:
        return ConstraintFailed(f"the grammar failed after {self._accepted} tokens: {problem}", self._field)
