"""Learns which tokens follow each other in answers of one grammar, and keeps that for the next ones. Pure.

A simple form of SuffixDecoding (https://arxiv.org/abs/2411.04975), which drafts from a tree of earlier answers: here
the last tokens are looked up in a table, and each of its entries has one following token.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

SIZES = (4, 2, 1)
"""Tokens of a context, the first of which is preferred."""
MAX_CONTEXTS = 1 << 12
"""Contexts of a table that were seen more than once, and as many that were not; those are dropped that were seen least
lately. Each takes some 250 bytes."""
MAX_TABLES = 16
"""Tables that are kept, those of the last grammars: together some 33 MB at most."""
MAX_LEARNED = 1 << 10
"""Tokens that are learned at once, the last ones: some 7 ms. There are more where a long answer is resumed."""
START, STEP, LEAST = 0.7, 0.35, 0.4
"""Certainty of a new token of a context; the part by which it moves to 1 or 0 each time; and that below which another
token takes its place."""


class Guess(NamedTuple):
    """The token that may follow, and how certain that is, within 0 and 1."""

    token: int
    certainty: float


class AnswerPatterns:
    """The table of one grammar. Answers that run at the same time all add to it."""

    def __init__(self) -> None:
        self._once: OrderedDict[tuple[int, ...], Guess] = OrderedDict()
        self._guesses: OrderedDict[tuple[int, ...], Guess] = OrderedDict()
        """Those of contexts that were seen again: a long reasoning does not take their place."""

    def __len__(self) -> int:
        """The contexts that it has."""
        return len(self._once) + len(self._guesses)

    def learn(self, tokens: Sequence[int], start: int, first: int) -> None:
        """Learn tokens[start:] of an answer that begins at `first`, or the last `MAX_LEARNED` of them."""
        for at in range(max(start, first + 1, len(tokens) - MAX_LEARNED), len(tokens)):
            token = tokens[at]
            for size in SIZES:
                if at - size < first:
                    continue
                self._see(tuple(tokens[at - size : at]), token)
        for table in (self._once, self._guesses):
            while len(table) > MAX_CONTEXTS:
                table.popitem(last=False)

    def guess(self, last: Sequence[int]) -> Guess | None:
        """Return what may follow the last tokens, by the longest context that is known."""
        for size in SIZES:
            if size > len(last):
                continue
            context = tuple(last[-size:])
            if (found := self._guesses.get(context) or self._once.get(context)) is not None:
                return found
        return None

    def _see(self, context: tuple[int, ...], token: int) -> None:
        known = self._guesses.get(context) or self._once.pop(context, None)
        if known is None:
            self._once[context] = Guess(token, START)
        else:
            self._guesses[context] = _learned(known, token)
            self._guesses.move_to_end(context)


def _learned(known: Guess, token: int) -> Guess:
    if token == known.token:
        return Guess(token, known.certainty + STEP * (1.0 - known.certainty))
    certainty = known.certainty * (1.0 - STEP)
    return Guess(token, LEAST) if certainty < LEAST else Guess(known.token, certainty)


class PatternTables:
    """Owns the tables of the last grammars, by tenant: nothing of an answer is used for another tenant's."""

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[str, str], AnswerPatterns] = OrderedDict()

    def of(self, tenant: str, grammar: str, example: Sequence[int] = ()) -> AnswerPatterns:
        """Return the table of a grammar; a new one has the tokens of an example, and is not kept if it has no name."""
        table = self._tables.get((tenant, grammar))
        if table is None:
            table = AnswerPatterns()
            table.learn(example, 0, 0)
        if not grammar:
            return table
        self._tables[(tenant, grammar)] = table
        self._tables.move_to_end((tenant, grammar))
        while len(self._tables) > MAX_TABLES:
            self._tables.popitem(last=False)
        return table
