"""Vocabularies for llguidance: of a checkpoint's tokenizer.json, or of the byte tokenizer of scripted models."""

from itertools import islice
from pathlib import Path
from typing import Any

from llguidance import LLTokenizer
from msgspec import Struct

from workers.checkpoints.json_files import MAX_TABLE_BYTES, read_text
from workers.text.byte_tokenizer import EOS_ID, ByteTokenizer


class SpecialTokens(Struct, frozen=True):
    """What a grammar can name of a vocabulary: its special tokens and its size."""

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


def checkpoint_vocabulary(file: Path, vocab_size: int, eos_ids: frozenset[int]) -> LLTokenizer:
    """Return the vocabulary of a tokenizer.json, for a model with so many logits. Takes a second for a large one.

    Raises what llguidance raises, a panic of Rust code included.
    """
    eos = sorted(token for token in eos_ids if token < vocab_size)
    return LLTokenizer(read_text(file, MAX_TABLE_BYTES), n_vocab=vocab_size, eos_token=eos or None)
