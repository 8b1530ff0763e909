"""Tokens of texts that a request names: of words that may not be generated, and of breakers of the DRY penalty."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from workers.engine.edits.dry import Breakers
from workers.text.tokenizer import Tokenizer

MAX_CACHED = 256


def bad_sequences(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the token sequences of words: with a space before them, as within a text, and without."""
    texts = (text for word in words for text in (word, " " + word.lstrip(" ")))
    found = (tuple(tokenizer.encode(text, special=False)) for text in texts)
    return tuple(dict.fromkeys(sequence for sequence in found if sequence))


class BreakerTokens:
    """Finds the tokens of breakers: every token that contains the text, and the tokens of the text itself.

    As in llama.cpp, so that a breaker such as a quotation mark is found in `."` as well; without the sequences in which
    the text only begins inside of a token.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pieces: tuple[NDArray[np.uint8], NDArray[np.int64]] | None = None
        self._containing = lru_cache(MAX_CACHED)(self._find)

    def of(self, texts: Sequence[str]) -> Breakers:
        """Return the breakers of these texts. The first call reads the whole vocabulary."""
        if not texts:
            return Breakers()
        singles = np.zeros(self._tokenizer.vocab_size, np.bool_)
        sequences: dict[tuple[int, ...], None] = {}
        for text in texts:
            singles[list(self._containing(text))] = True
            sequence = tuple(self._tokenizer.encode(text, special=False))
            if len(sequence) == 1 and sequence[0] < len(singles):
                singles[sequence[0]] = True
            elif len(sequence) > 1:
                sequences[sequence] = None
        return Breakers(singles.tobytes(), tuple(sequences))

    def _find(self, text: str) -> NDArray[np.int64]:
        """Return the tokens whose bytes contain a text."""
        if self._pieces is None:
            self._pieces = self._read()
        data, ends = self._pieces
        wanted = text.encode("utf-8", "replace")
        at = np.flatnonzero(data[: max(0, len(data) - len(wanted) + 1)] == wanted[0])
        for offset, byte in enumerate(wanted[1:], 1):
            at = at[data[at + offset] == byte]
        tokens = np.searchsorted(ends, at, side="right")
        return np.unique(tokens[at + len(wanted) <= ends[tokens]])

    def _read(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return the bytes of all tokens, one after the other, and where each token ends."""
        pieces = [self._tokenizer.piece(token) for token in range(self._tokenizer.vocab_size)]
        return np.frombuffer(b"".join(pieces), np.uint8), np.cumsum([len(piece) for piece in pieces])
