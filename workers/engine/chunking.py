"""Where a prompt is cut into the chunks that a runner computes. Pure."""

from collections.abc import Sequence
from itertools import pairwise

CALL_TOKENS = 32
"""What a prefill call costs besides its tokens, in tokens: every call reads the weights once."""


def cut(length: int, ladder: Sequence[int]) -> tuple[int, ...]:
    """Cut `length` tokens into chunks and return the tokens of each: whole chunks of the ladder, then one for the rest.

    A runner computes the rest in the smallest chunk that covers it, the end of which is padding. So the rest is what
    is cheaper so, with `CALL_TOKENS` for each call, than cut further: neither is a large chunk run for a few tokens,
    nor many small ones where one would do. A function of the arguments alone: another cut is another order of
    floating-point sums, so it must not depend on the batch. A runner that pads needs room for it: the last part may
    end up to `ladder[-1]` rows after the context.

    Raises `ValueError` for a negative length or an empty, unsorted or non-positive ladder.
    """
    if length < 0:
        raise ValueError(f"length must not be negative, not {length}")
    if not ladder or ladder[0] < 1 or any(low >= high for low, high in pairwise(ladder)):
        raise ValueError(f"ladder must rise and be positive, not {tuple(ladder)}")
    whole, rest = divmod(length, ladder[-1])
    return (ladder[-1],) * whole + _cut_rest(rest, ladder)


def _cut_rest(rest: int, ladder: Sequence[int]) -> tuple[int, ...]:
    """The cheaper of covering the rest with one chunk and taking the largest that fits off it first, at every turn."""
    parts: list[int] = []
    covered: list[tuple[int, int]] = []
    while rest:
        covered.append((rest, next(chunk for chunk in ladder if chunk >= rest) + CALL_TOKENS))
        parts.append(next((chunk for chunk in reversed(ladder) if chunk <= rest), rest))
        rest -= parts[-1]
    further = 0
    end = len(parts)
    for turn in reversed(range(len(parts))):
        rest, cost = covered[turn]
        further += parts[turn] + CALL_TOKENS
        if cost <= further or parts[turn] == rest:
            parts[turn], further, end = rest, cost, turn + 1
    return tuple(parts[:end])
