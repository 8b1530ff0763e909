"""Prompt lookup: drafts what followed the last tokens where they occurred before, in the prompt or the answer.

By Apoorv Saxena (github.com/apoorvumang/prompt-lookup-decoding). Of several places the last one counts. As long as the
answer goes on as there, the draft stays at that place; otherwise the last `SIZES` tokens are looked up.
"""

from collections.abc import Sequence

SIZES = (4, 2)
"""Tokens by which a place is found, the first of which is preferred."""
MAX_INDEXED = 1 << 15
"""Tokens whose places are known, the last ones. The index of one takes some 300 bytes."""


class PromptLookup:
    """Implements `Drafter`. A call takes some microseconds, and the first one some 100 for 1,000 tokens."""

    def __init__(self, tokens: list[int]) -> None:
        """`tokens` are those of the sequence, to which its owner appends."""
        self._tokens = tokens
        self._places: list[dict[tuple[int, ...], int]] = [{} for _ in SIZES]
        """By the last tokens before a place: the index of the token there, for each of `SIZES`."""
        self._first = self._end = max(0, len(tokens) - MAX_INDEXED)
        """The places after these tokens are in the index, up to the second one."""
        self._source = self._length = 0
        """The place of the last draft, and the length of the sequence then. 0 for none."""

    def draft(self, most: int) -> Sequence[int]:
        """See `Drafter.draft`. A draft that reaches the end of the sequence repeats its own first tokens."""
        self._index()
        source = self._find()
        self._source, self._length = source, len(self._tokens)
        if not source:
            return ()
        draft = self._tokens[source : source + most]
        for at in range(most - len(draft)):
            draft.append(draft[at])
        return draft

    def _index(self) -> None:
        """Add the places before the last token: the last tokens themselves are not among them."""
        tokens, last = self._tokens, len(self._tokens) - 1
        if last - self._first > 2 * MAX_INDEXED:
            self._first = self._end = last - MAX_INDEXED
            for places in self._places:
                places.clear()
        for size, places in zip(SIZES, self._places, strict=True):
            begin = max(self._end + 1 - size, self._first)
            if last - begin >= size:
                parts = zip(*(tokens[begin + at : last - size + at + 1] for at in range(size)), strict=True)
                places.update(zip(parts, range(begin + size, last + 1), strict=True))
        self._end = max(self._end, last)

    def _find(self) -> int:
        """Return the place where the sequence goes on as before its end; 0 if there is none."""
        tokens, new = self._tokens, len(self._tokens) - self._length
        if self._source and tokens[self._length :] == tokens[self._source : self._source + new]:
            return self._source + new
        for size, places in zip(SIZES, self._places, strict=True):
            if place := places.get(tuple(tokens[-size:])):
                return place
        return 0
