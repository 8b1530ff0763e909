"""Which cache rows one sequence may take from another. Pure.

Rows are shared within a tenant only: a hit is a shorter wait, and would tell one tenant what another has asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

MIN_PREFIX_TOKENS = 32
"""Tokens below which a prefix is computed anew: one call of the smallest chunk costs less than it is worth to look."""
_STRIDE = 64


@dataclass(frozen=True, slots=True)
class PrefixPolicy:
    """What is kept of finished sequences."""

    enabled: bool = True
    """False keeps nothing, and shares nothing between live sequences either."""
    max_rows: int | None = None
    """Cache rows kept at most for sequences that are over; None is all that live ones leave."""
    min_tokens: int = MIN_PREFIX_TOKENS
    """Tokens of the shortest prefix that is reused."""

    def __post_init__(self) -> None:
        if self.max_rows is not None and self.max_rows < 0:
            raise ValueError(f"max_rows must not be negative, not {self.max_rows}")
        if self.min_tokens < 1:
            raise ValueError(f"min_tokens must be at least 1, not {self.min_tokens}")


@dataclass(slots=True)
class CachedRows:
    """What a slot's cache holds: row i was computed from `tokens[: i + 1]`. The list may run ahead of the rows."""

    tenant: str
    tokens: Sequence[int]
    rows: int = 0
    chunk_ends: tuple[int, ...] = ()
    """Where the prefill chunks ended that made the first rows, in order from row 0; decoded rows follow."""


def common_prefix(one: Sequence[int], other: Sequence[int], limit: int) -> int:
    """How many of the first `limit` tokens are equal. Whole strides are compared at once, which is 20 times faster."""
    limit = min(limit, len(one), len(other))
    at = 0
    while at < limit and one[at : at + _STRIDE] == other[at : at + _STRIDE]:
        at += _STRIDE
    if at >= limit:
        return limit
    rest = zip(one[at:limit], other[at:limit], strict=True)
    return at + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], rest))


def reusable(wanted: CachedRows, source: CachedRows, limit: int, *, exact_rows: bool) -> int:
    """The rows of `source` that are what a cold run of `wanted` would compute, to the bit; at most `limit`.

    With `exact_rows` a row is the same however it is computed. Without, it is so where the same chunks made it:
    `wanted.chunk_ends` has the chunk ends of the cold run.
    """
    if wanted.tenant != source.tenant:
        return 0
    shared = common_prefix(wanted.tokens, source.tokens, min(limit, source.rows))
    if exact_rows:
        return shared
    equal = takewhile(
        lambda pair: pair[0] == pair[1] <= shared, zip(wanted.chunk_ends, source.chunk_ends, strict=False)
    )
    return max((end for end, _ in equal), default=0)
