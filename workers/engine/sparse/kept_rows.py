"""The tokens of a prompt that are computed, where the others are left out. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Ranges = tuple[tuple[int, int], ...]
"""Ranges `start .. end` of positions in a prompt, in rising order."""


@dataclass(frozen=True, slots=True)
class KeptRows:
    """Maps the cache rows of a sequence to positions: those of the kept tokens of the prompt, then all later ones."""

    positions: tuple[int, ...]
    """The positions in the prompt of the kept tokens, in rising order."""
    prompt: int
    """Tokens of the whole prompt."""

    @classmethod
    def of(cls, ranges: Ranges, prompt: int) -> "KeptRows":
        """Raises `ValueError` for ranges that are not those of a prompt of so many tokens, or without its last one."""
        check_ranges(ranges, prompt)
        return cls(tuple(at for start, end in ranges for at in range(start, end)), prompt)

    @property
    def left_out(self) -> int:
        """Tokens of the prompt that are not computed: by so much the position of a later token is more than its row."""
        return self.prompt - len(self.positions)

    @property
    def ranges(self) -> Ranges:
        """The kept positions as ranges, of which none begins where another ends."""
        return joined([(at, at + 1) for at in self.positions])

    def of_rows(self, start: int, end: int) -> Sequence[int]:
        """Return the positions of rows `start .. end`."""
        kept = self.positions[start:end]
        if end <= len(self.positions):
            return kept
        first = max(start, len(self.positions)) + self.left_out
        return (*kept, *range(first, end + self.left_out))


def bounds_of(ranges: Ranges) -> tuple[int, ...]:
    """Return the start and the end of each range, one after the other."""
    return tuple(bound for pair in ranges for bound in pair)


def ranges_of(bounds: Sequence[int]) -> Ranges:
    """Return the ranges of which `bounds_of` has made these bounds. Raises `ValueError` for an odd number of them."""
    return tuple(zip(bounds[::2], bounds[1::2], strict=True))


def check_ranges(ranges: Ranges, prompt: int) -> None:
    """Raise `ValueError` unless ranges are in rising order, within a prompt of so many tokens, and have its last
    one."""
    bounds = [0, *bounds_of(ranges)]
    rising = all(first <= second for first, second in pairwise(bounds)) and all(start < end for start, end in ranges)
    if not ranges or not rising or bounds[-1] != prompt:
        raise ValueError(f"the kept ranges are not those of a prompt of {prompt} tokens")


def joined(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """Return rising ranges with those joined that adjoin or overlap."""
    out: list[tuple[int, int]] = []
    for start, end in ranges:
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return tuple(out)
