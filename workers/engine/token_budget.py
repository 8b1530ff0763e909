"""How many prompt tokens a step may compute beside the rows that decode, from what both were measured to cost. Pure.

A prompt's chunk holds up the next token of every running stream. So while streams run, a step may take `STRETCH` times
as long as one that only decodes, and no more prompt tokens than that leaves room for; with nobody to hold up,
`max_tokens`. On devices where a chunk costs little beside a decode step that is a large chunk, on a CPU a small one.
"""

from collections import deque
from collections.abc import Sequence
from statistics import median

DEFAULT_STEP_TOKENS = 512
"""Tokens of a step that holds nobody up, and of any step before the first ones were measured."""
STRETCH = 4.0
"""Seconds of a step with a chunk in seconds of a step without, at most; one of the smallest chunks always runs."""
_WINDOW = 9
"""Measurements of which the median counts: one that a busy machine spoilt does not."""


class TokenBudget:
    """Learns the cost of decode steps and of each size of chunk, and says how much a step may do.

    It never decides what is computed, only when: tokens do not depend on it.
    """

    def __init__(self, sizes: Sequence[int], max_tokens: int = DEFAULT_STEP_TOKENS, stretch: float = STRETCH) -> None:
        """`sizes` are the chunk sizes in rising order. Raises `ValueError` for a bound that is none."""
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
        """A decode step took so long."""
        self._decode.append(seconds)

    def record_prefill(self, rows: int, seconds: float) -> None:
        """A call of so many rows took so long; it cost what the smallest size that covers it costs."""
        size = next((size for size in self._sizes if size >= rows), self._sizes[-1])
        self._chunks[size].append(seconds)

    def step_tokens(self, decoding: int) -> int:
        """The token budget of a step in which `decoding` rows decode, they included."""
        if not decoding or not self._decode:
            return self._max_tokens
        seconds = (self._stretch - 1.0) * median(self._decode)
        best = self._sizes[0]
        for size, cost in self._costs():
            if cost <= seconds:
                best = max(best, int(seconds / cost) * size) if cost else self._max_tokens
        return decoding + min(best, max(self._max_tokens, self._sizes[0])) + 1

    def _costs(self) -> list[tuple[int, float]]:
        """Seconds of each size; one that did not run yet is thought to cost in proportion to the size below it."""
        costs: list[tuple[int, float]] = []
        for size in self._sizes:
            known = self._chunks[size]
            if known:
                costs.append((size, median(known)))
            elif costs:
                below, cost = costs[-1]
                costs.append((size, cost * size / below))
        return costs
