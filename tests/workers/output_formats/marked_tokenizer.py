"""A tokenizer of bytes in which some markers are tokens, as in the vocabulary of a model."""

import re
from collections.abc import Sequence

from workers.text.byte_tokenizer import ByteTokenizer

FIRST = 300


class MarkedTokenizer(ByteTokenizer):
    """Ids from `FIRST` on are markers. Those that are special have no text."""

    def __init__(self, markers: Sequence[str], *, special: bool = True) -> None:
        super().__init__()
        self.added_tokens = {marker: FIRST + index for index, marker in enumerate(markers)}
        self.vocab_size = FIRST + len(markers)
        self._texts = {ident: marker for marker, ident in self.added_tokens.items()}
        self._special = special
        self._pattern = re.compile("|".join(map(re.escape, markers)) or "(?!)")

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Markers become their ids; `typed` does not."""
        ids, at = [], 0
        for match in self._pattern.finditer(text):
            ids += [*self.typed(text[at : match.start()]), self.added_tokens[match[0]]]
            at = match.end()
        return ids + self.typed(text[at:])

    def typed(self, text: str) -> list[int]:
        """The ids of a text whose markers are ordinary text."""
        return list(text.encode())

    def piece(self, token: int, *, first: bool = False) -> bytes:
        if token in self._texts:
            return b"" if self._special else self._texts[token].encode()
        return super().piece(token)
