"""Prompt lookup: drafts what followed the last tokens where they occurred before, in the prompt or the answer.

By Apoorv Saxena (github.com/apoorvumang/prompt-lookup-decoding). Of several places the last one counts. As long as the
answer goes on as there, the draft stays at that place; otherwise the last `SIZES` tokens are looked up.
"""

from collections.abc import Sequence

from workers.engine.embeddings.prompt_embeddings import has_rows

SIZES = (4, 2)
"""Tokens by which a place is found, the first of which is preferred."""
MAX_SEARCHED = 1 << 15
"""Tokens that are searched, the last ones: at least so many, and at most twice as many."""
CHARACTERS = 0x110000
"""Characters that a string may have, more than any vocabulary has tokens."""


class PromptLookup:
    """Implements `Drafter`. A call takes some microseconds, and the first one some 50 for 1,000 tokens.

    The tokens are kept as the characters of a string, 4 bytes each, which Python searches about as fast as it reads
    memory: there is no index that each token would have to be added to.
    """

    def __init__(self, tokens: list[int]) -> None:
        """`tokens` are those of the sequence, to which its owner appends."""
        self._tokens = tokens
        self._text = ""
        self._first = max(0, len(tokens) - MAX_SEARCHED)
        """The token of the first character."""
        self._place = self._length = 0
        """The place of the last draft, and the length of the sequence then. 0 for none."""

    def draft(self, most: int) -> Sequence[int]:
        """See `Drafter.draft`. None while the answer follows the last place."""
        if self._follows() or not (found := self._find()):
            return ()
        return self._draft_at(found, most)

    def followed(self, most: int) -> Sequence[int]:
        """Return a draft at the place of the last one, while the answer goes on as there."""
        if not self._follows():
            return ()
        return self._draft_at(self._place + len(self._tokens) - self._length, most)

    def realigned(self, most: int) -> Sequence[int]:
        """Return a draft as if the tokens since the last draft stood for as many at its place; none right after it."""
        new = len(self._tokens) - self._length
        return self._draft_at(self._place + new, most) if self._place and new else ()

    def _follows(self) -> bool:
        place, new = self._place, len(self._tokens) - self._length
        return place > 0 and self._tokens[self._length :] == self._tokens[place : place + new]

    def _draft_at(self, place: int, most: int) -> Sequence[int]:
        """Return what is at a place. A draft that reaches the end of the sequence repeats its own first tokens."""
        self._place, self._length = place, len(self._tokens)
        draft = self._tokens[place : place + most]
        for at in range(most - len(draft)):
            draft.append(draft[at])
        return draft

    def _find(self) -> int:
        """Return the place after the last tokens where they occurred before; 0 if there is none."""
        text = self._text
        if len(self._tokens) - self._first > 2 * MAX_SEARCHED:
            self._first, text = len(self._tokens) - MAX_SEARCHED, ""
        new = self._tokens[self._first + len(text) :]
        if has_rows(new):  # a row taken for another one, or for a token, is a wrong draft at worst
            new = [token % CHARACTERS for token in new]
        self._text = text = text + "".join(map(chr, new))
        for size in SIZES:
            if (found := text.rfind(text[-size:], 0, -1)) >= 0 and len(text) > size:
                return self._first + found + size
        return 0


class FollowedLookup:
    """Implements `Drafter`, for an answer that goes on as the text does where a draft was taken from: that is far
    likelier than that it begins to."""

    def __init__(self, lookup: PromptLookup) -> None:
        """`lookup` is that of the sequence, which finds places."""
        self._lookup = lookup

    def draft(self, most: int) -> Sequence[int]:
        """See `Drafter.draft`."""
        return self._lookup.followed(most)


class RealignedLookup:
    """Implements `Drafter`, for answers that repeat a text with other words in it, like the objects of a list: drafts
    what follows the place of the last draft, although its tokens were other ones."""

    def __init__(self, lookup: PromptLookup) -> None:
        """`lookup` is that of the sequence, which finds places."""
        self._lookup = lookup

    def draft(self, most: int) -> Sequence[int]:
        """See `Drafter.draft`."""
        return self._lookup.realigned(most)
