"""Decides which sequences a drafter is to compute before it can draft for them. Pure."""

from collections.abc import Sequence
from typing import NamedTuple


class Lacking(NamedTuple):
    """A sequence of which the drafter has not computed all tokens."""

    missing: int
    """Tokens that it lacks."""
    left: float
    """Tokens that are expected to be generated still."""
    saved_s: float
    """Seconds that drafts are expected to save for each generated token."""


def worth_preparing(lacking: Sequence[Lacking], token_s: float, tokens: int) -> list[int]:
    """Return the indices of the sequences whose drafts are expected to save more time than it takes to compute what is
    missing, those that lack least first.

    A token takes `token_s` seconds, 0 if that is not known. As `tokens` of them are computed beside each step, one
    sequence after the other, drafts begin that much later.
    """
    chosen, before = list[int](), 0
    for at in sorted(range(len(lacking)), key=lambda at: lacking[at].missing):
        missing, left, saved_s = lacking[at]
        steps = (before + missing) / tokens if token_s else 0.0
        if saved_s * (left - steps) > token_s * missing:
            chosen.append(at)
            before += missing
    return chosen
