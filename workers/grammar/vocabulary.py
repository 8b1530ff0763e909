"""Vocabularies for llguidance: of a model's tokenizer, or of bytes beside its special tokens."""

from itertools import islice
from typing import Any

from llguidance import LLTokenizer
from msgspec import Struct

from workers.text.byte_tokenizer import EOS_ID, ByteTokenizer
from workers.text.tokenizer import Tokenizer


class SpecialTokens(Struct, frozen=True):
    """Special tokens and size of a vocabulary, which grammars can name."""

    vocab_size: int
    eos: tuple[int, ...]
    names: dict[int, str]


class ByteVocabulary:
    """A token for each byte beside special tokens, with the attributes that llguidance expects of a tokenizer. Other
    tokens have no text."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, special: SpecialTokens) -> None:
        """Raises `ValueError` if there is no room for the bytes."""
        self.eos_token_id = special.eos[0]
        self.special_token_ids = tuple(special.names)
        free = (token for token in range(special.vocab_size) if token not in special.names)
        self._bytes = list(islice(free, 256))
        if len(self._bytes) < 256:
            raise ValueError(f"a vocabulary of {special.vocab_size} tokens has no room for 256 bytes")
        self.tokens = [b""] * special.vocab_size
        for token, name in special.names.items():
            self.tokens[token] = name.encode()
        for byte, token in enumerate(self._bytes):
            self.tokens[token] = bytes((byte,))

    def __call__(self, text: str | bytes) -> list[int]:
        """Return the tokens of a text that the grammar forces."""
        return [self._bytes[byte] for byte in (text.encode() if isinstance(text, str) else text)]


def byte_vocabulary(special: SpecialTokens | None = None) -> LLTokenizer:
    """Return the vocabulary of bytes beside these special tokens; by default that of `ByteTokenizer`."""
    if special is None:
        special = SpecialTokens(ByteTokenizer.vocab_size, (EOS_ID,), {EOS_ID: ByteTokenizer().label(EOS_ID).decode()})
    vocabulary: Any = ByteVocabulary(special)
    return LLTokenizer(vocabulary, n_vocab=special.vocab_size, eos_token=list(special.eos))


def special_tokens(vocabulary: LLTokenizer) -> SpecialTokens:
    """Return the special tokens of a vocabulary."""
    size = vocabulary.vocab_size
    special = {token for token in range(size) if vocabulary.is_special_token(token)} | {*vocabulary.eos_tokens}
    names = {token: vocabulary.decode_str([token]) for token in sorted(special)}
    # llguidance takes the byte 0xFF, which no text has, for the beginning of a name.
    return SpecialTokens(size, tuple(vocabulary.eos_tokens), {token: name for token, name in names.items() if name})


class TokenizerVocabulary:
    """The tokens of a tokenizer, with the attributes that llguidance expects of one. A token has the bytes that the
    detokenizer emits for it. Tokens without text are special if they have a name, and never allowed otherwise."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """For a model with so many logits. Raises `ValueError` for a tokenizer without an end-of-sequence token."""
        self.eos = sorted(token for token in tokenizer.eos_ids if token < vocab_size)
        if not self.eos:
            raise ValueError("it has no end-of-sequence token")
        self.eos_token_id = self.eos[0]
        self.tokens = [tokenizer.piece(token) for token in range(vocab_size)]
        special = {token for token in range(vocab_size) if not self.tokens[token]} | {*self.eos}
        self.special_token_ids = sorted(token for token in special if tokenizer.label(token))
        for token in self.special_token_ids:
            self.tokens[token] = tokenizer.label(token)
        self._tokenizer = tokenizer
        self._greedy: LLTokenizer | None = None

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text that the grammar forces: the model's usual ones if they are exactly this text,
        else the longest ones."""
        ids = self._tokenizer.encode_short(text)
        if b"".join(self.tokens[token] for token in ids if token < len(self.tokens)) == text.encode():
            return ids
        return [] if self._greedy is None else self._greedy.greedy_tokenize(text)

    def loaded(self) -> LLTokenizer:
        """Return llguidance's form, which takes half a second for 150,000 tokens.

        In two parts, because llguidance does not release the GIL: streams pause for half of the time, twice.
        """
        wrapper: Any = self
        self._greedy = LLTokenizer(wrapper, n_vocab=len(self.tokens), eos_token=self.eos, slices=[])
        return self._greedy.with_slices(LLTokenizer.general_slices())


def tokenizer_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> LLTokenizer:
    """Return the vocabulary of a tokenizer, for a model with so many logits.

    Raises `ValueError` for a tokenizer without an end-of-sequence token, and what llguidance raises, a panic of Rust
    code included.
    """
    return TokenizerVocabulary(tokenizer, vocab_size).loaded()
