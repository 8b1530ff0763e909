"""Token budget of a step: how many prompt tokens to compute beside decode rows, from measured costs. Pure.

A prompt chunk delays the next token of every running stream. While streams run, a step may therefore take `STRETCH`
times as long as a step that only decodes, and has prompt tokens to fill that time. Without running streams the budget
is `max_tokens`. On devices where a chunk is cheap relative to a decode step this allows a large chunk, on a CPU a small
one.
"""

from collections import deque
from collections.abc import Sequence
from statistics import median

DEFAULT_STEP_TOKENS = 512
"""Tokens of a step that delays no stream, and of any step before the first measurements."""
STRETCH = 4.0
"""Maximum ratio of the duration of a step with a chunk to that without. One smallest chunk may always run."""
_WINDOW = 9
"""Number of measurements of which the median is used, so that single outliers have no effect."""


class TokenBudget:
    """Learns the costs of decode steps and of each chunk size, and sets the token budget of the next step.

    It never decides what is computed, only when: tokens do not depend on it.
    """

    def __init__(self, sizes: Sequence[int], max_tokens: int = DEFAULT_STEP_TOKENS, stretch: float = STRETCH) -> None:
        """`sizes` are the chunk sizes in rising order. Raises `ValueError` for an invalid bound."""
        if max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {max_tokens}")
        if not stretch > 1.0:
            raise ValueError(f"stretch must be above 1, not {stretch}")
        self._sizes = tuple(sizes)
        self._max_tokens = max_tokens
        self._stretch = stretch
        self._decode: deque[float] = deque(maxlen=_WINDOW)
        self._chunks: dict[int, deque[float]] = {size: deque(maxlen=_WINDOW) for size in self._sizes}

    def record_decode(self, seconds: float) -> None:
        """Record the duration of a decode step."""
        self._decode.append(seconds)

    def record_prefill(self, rows: int, seconds: float) -> None:
        """Record the duration of a prefill call of `rows` rows. It costs what the smallest size that covers them
        costs."""
        size = next((size for size in self._sizes if size >= rows), self._sizes[-1])
        self._chunks[size].append(seconds)

    def step_tokens(self, decoding: int) -> int:
        """Return the token budget of a step in which `decoding` rows decode, including those rows."""
        if not decoding or not self._decode:
            return self._max_tokens
        seconds = (self._stretch - 1.0) * median(self._decode)
        best = self._sizes[0]
        for size, cost in self._costs():
            if cost <= seconds:
                best = max(best, int(seconds / cost) * size) if cost else self._max_tokens
        return decoding + min(best, max(self._max_tokens, self._sizes[0])) + 1

    def _costs(self) -> list[tuple[int, float]]:
        """Return the seconds of each size. Unmeasured sizes are extrapolated from the size below."""
        costs: list[tuple[int, float]] = []
        for size in self._sizes:
            known = self._chunks[size]
            if known:
                costs.append((size, median(known)))
            elif costs:
                below, cost = costs[-1]
                costs.append((size, cost * size / below))
        return costs
