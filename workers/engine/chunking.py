"""Splits a prompt into the chunks of its prefill calls. Pure."""

from collections.abc import Callable, Sequence
from itertools import pairwise

CALL_TOKENS = 32
"""Fixed cost of a prefill call, in tokens: every call reads the weights once."""


def chunk_lengths(length: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Split `length` tokens into chunks and return the tokens of each: chunks of the largest size, then the remainder.

    `sizes` are the runner's prefill sizes in rising order. A runner computes a chunk in the smallest size that covers
    it and pads the rest. The remainder is one padded chunk or several exact ones, whichever costs less when each call
    costs `CALL_TOKENS` more than its rows. The result depends on the arguments alone, never on the batch: other chunks
    sum floating-point numbers in another order. A runner that pads needs room for up to `sizes[-1]` rows after the
    context.

    Raises `ValueError` for a negative length, and for sizes that are empty, unsorted or not positive.
    """
    if length < 0:
        raise ValueError(f"length must not be negative, not {length}")
    if not sizes or sizes[0] < 1 or any(low >= high for low, high in pairwise(sizes)):
        raise ValueError(f"sizes must rise and be positive, not {tuple(sizes)}")
    whole, rest = divmod(length, sizes[-1])
    return (sizes[-1],) * whole + _split_remainder(rest, sizes)


def chunk_ends(length: int, sizes: Sequence[int], whole: Callable[[int], int]) -> tuple[int, ...]:
    """Return the ends of the chunks of a prompt of `length` tokens, where some ranges of it must not be split: those of
    `chunk_lengths` as far as `whole` lets them be, which returns the longest prefix of up to so many tokens that splits
    no range. A chunk that would have a part of a range ends before it, or has all of it.

    Raises `ValueError` as `chunk_lengths` does, and for a range longer than the largest size.
    """
    ends = [0]
    while ends[-1] < length:
        start = ends[-1]
        end = whole(start + chunk_lengths(length - start, sizes)[0])
        if end <= start:  # it begins with a range
            end = next((each for each in range(start + 1, length + 1) if whole(each) == each), length)
        if end - start > sizes[-1]:
            raise ValueError(f"{end - start} tokens in one chunk, the largest has {sizes[-1]}")
        ends.append(end)
    return tuple(ends[1:])


def _split_remainder(rest: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Take the largest size that fits at each step, or cover all that is left with one padded chunk if that is
    cheaper."""
    parts: list[int] = []
    covered: list[tuple[int, int]] = []
    while rest:
        covered.append((rest, next(size for size in sizes if size >= rest) + CALL_TOKENS))
        parts.append(next((size for size in reversed(sizes) if size <= rest), rest))
        rest -= parts[-1]
    split_cost = 0
    end = len(parts)
    for index in reversed(range(len(parts))):
        rest, cost = covered[index]
        split_cost += parts[index] + CALL_TOKENS
        if cost <= split_cost or parts[index] == rest:
            parts[index], split_cost, end = rest, cost, index + 1
    return tuple(parts[:end])
