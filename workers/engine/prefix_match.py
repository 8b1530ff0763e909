"""Which cache rows one sequence may take from another. Pure.

Rows are shared within a tenant only: a hit is a shorter wait, and would tell one tenant what another has asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

LEAST = 32
"""Tokens below which a prefix is computed anew: one call of the smallest chunk costs less than it is worth to look."""
_STRIDE = 64


@dataclass(frozen=True, slots=True)
class PrefixPolicy:
    """What is kept of finished sequences."""

    enabled: bool = True
    """False keeps nothing, and shares nothing between live sequences either."""
    most: int | None = None
    """Cache rows kept at most for sequences that are over; None keeps the last sequence of every slot."""
    least: int = LEAST
    """Tokens of the shortest prefix that is reused."""

    def __post_init__(self) -> None:
        if self.most is not None and self.most < 0:
            raise ValueError(f"most must not be negative, not {self.most}")
        if self.least < 1:
            raise ValueError(f"least must be at least 1, not {self.least}")


@dataclass(slots=True)
class Written:
    """What a slot's cache holds: row i was computed from `tokens[: i + 1]`. The list may run ahead of the rows."""

    tenant: str
    tokens: Sequence[int]
    rows: int = 0
    ends: tuple[int, ...] = ()
    """Where the prefill chunks ended that made the first rows, in order from row 0; decoded rows follow."""


def common_prefix(one: Sequence[int], other: Sequence[int], most: int) -> int:
    """How many of the first `most` tokens are equal. Whole strides are compared at once, which is 20 times faster."""
    most = min(most, len(one), len(other))
    at = 0
    while at < most and one[at : at + _STRIDE] == other[at : at + _STRIDE]:
        at += _STRIDE
    if at >= most:
        return most
    rest = zip(one[at:most], other[at:most], strict=True)
    return at + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], rest))


def reusable(wanted: Written, source: Written, most: int, *, exact_rows: bool) -> int:
    """The rows of `source` that are what a cold run of `wanted` would compute, to the bit; at most `most`.

    With `exact_rows` a row is the same however it is computed. Without, it is so where the same chunks made it:
    `wanted.ends` has the cuts of the cold run.
    """
    if wanted.tenant != source.tenant:
        return 0
    shared = common_prefix(wanted.tokens, source.tokens, min(most, source.rows))
    if exact_rows:
        return shared
    equal = takewhile(lambda pair: pair[0] == pair[1] <= shared, zip(wanted.ends, source.ends, strict=False))
    return max((end for end, _ in equal), default=0)
