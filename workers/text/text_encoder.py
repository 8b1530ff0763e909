"""Encodes text with the `tokenizers` library; control tokens that are marked in it are ordinary text."""

from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken

from workers.text.control_tokens import ControlTokens, insert
from workers.text.vocabulary_gaps import LAST

OWN = "\ufdd1\ufdd2\ufdd1\ufdd2"
"""Noncharacters before the control tokens of a template, in text whose other ones are ordinary text."""
_REPLACEMENT = "\ufffd"


class TextEncoder:
    """Owns a tokenizer of the library, which gets a second name for each control token: itself after `OWN`.

    With `encode_special_tokens` the library takes control tokens for text (`split_special_tokens` in transformers), and
    still finds the second names. So the text around them is normalized and split as it is otherwise.
    """

    def __init__(self, library: tokenizers.Tokenizer) -> None:
        self._library = library
        vocabulary = library.get_vocab(with_added_tokens=True)
        self._last = vocabulary.pop(LAST, None)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        self.longest_token = max(map(len, vocabulary), default=1)
        added = {i: token for i, token in library.get_added_tokens_decoder().items() if i != self._last}
        self.added_tokens = {token.content: ident for ident, token in added.items()}
        special = {ident: token for ident, token in added.items() if token.special}
        self.control = ControlTokens(token.content for token in special.values())
        # Those that the library finds in normalized text, in which other characters may have become one.
        self._normalized = library.normalizer is not None and any(token.normalized for token in special.values())
        unknown = getattr(library.model, "unk_token", None)
        self._special = {token.content: ident for ident, token in special.items() if token.content != unknown}
        library.add_tokens([_second_name(token) for token in special.values()])
        self._ids = {library.token_to_id(OWN + token.content): ident for ident, token in special.items()}

    def mark(self, values: Any) -> tuple[Any, str]:
        """As `ControlTokens.mark`. The mark is not empty if the normalized text may have other control tokens."""
        return self.control.mark(values, always=self._normalized)

    def token_of(self, ident: int) -> str | None:
        """Return a token by its id; None for an id that is not in the vocabulary."""
        return None if ident in self._ids or ident == self._last else self._library.id_to_token(ident)

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Return the ids of a text, control tokens in it included. `special` as in `Tokenizer.encode`."""
        return self._ids_of(self._without_second_names(text), special=special)

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Return the ids of two texts, with special tokens, and the segment of each."""
        pair = tuple(self._clean(self._without_second_names(text)) for text in (first, second))
        encoded = self._library.encode_batch([pair], add_special_tokens=True)[0]
        return encoded.ids, encoded.type_ids

    def encode_short(self, text: str) -> list[int]:
        """Return the ids of a text. Holds the GIL, so that no other thread changes the library's settings meanwhile."""
        ids: list[int] = self._library.encode(self._without_last(text), add_special_tokens=False).ids
        return ids

    def encode_marked(self, text: str, mark: str) -> list[int]:
        """Return the ids of a text in which control tokens with a mark inside are ordinary text."""
        plain = self._without_second_names(text.replace(mark, ""))
        own, at, last = [], 0, 0  # the places of control tokens without a mark, once the marks are gone
        found = self.control.find(text)
        for start, _ in found:
            at += start - last - len(mark) * text.count(mark, last, start)
            last = start
            own.append(at)
        if own == [start for start, _ in self.control.find(plain)]:
            ids = self._ids_of(plain, special=False)
            if not self._normalized or self._control_ids(ids) == self._control_ids_at(text, found):
                return ids
        self._library.encode_special_tokens = True
        try:
            ids = self._ids_of(insert(plain, own, OWN), special=False)
        finally:
            self._library.encode_special_tokens = False
        return [self._ids.get(ident, ident) for ident in ids]

    def _control_ids(self, ids: Sequence[int]) -> list[int]:
        known = set(self._special.values())
        return [ident for ident in ids if ident in known]

    def _control_ids_at(self, text: str, places: Sequence[tuple[int, int]]) -> list[int]:
        return [self._special[text[start:end]] for start, end in places if text[start:end] in self._special]

    def _without_second_names(self, text: str) -> str:
        """Replace what would make a control token in a text another one."""
        if OWN not in text:
            return text
        characters = list(text)
        for start, _ in self.control.find(text):
            if text.endswith(OWN, 0, start):
                characters[start - 1] = _REPLACEMENT
        return "".join(characters)

    def _without_last(self, text: str) -> str:
        """Replace what would be the token behind all others, if there is one."""
        return text if self._last is None or LAST not in text else text.replace(LAST, _REPLACEMENT)

    def _ids_of(self, text: str, *, special: bool) -> list[int]:
        # A batch, because only that releases the GIL; without offsets it takes half as long.
        ids: list[int] = self._library.encode_batch_fast([self._clean(text)], add_special_tokens=special)[0].ids
        return ids

    def _clean(self, text: str) -> str:
        # A lone surrogate is valid in JSON and not in UTF-8.
        return self._without_last(text).encode("utf-8", "replace").decode()


def _second_name(token: Any) -> AddedToken:
    """Return the token's second name. It is found before the text is normalized, whatever its first one is."""
    return AddedToken(
        OWN + token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=False,
        special=False,
    )
