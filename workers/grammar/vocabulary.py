"""Vocabularies for llguidance: of a checkpoint's tokenizer.json, or of the byte tokenizer of scripted models."""

from pathlib import Path
from typing import Any

from llguidance import LLTokenizer

from workers.checkpoints.json_files import MAX_TABLE_BYTES, read_text
from workers.text.byte_tokenizer import EOS_ID, ByteTokenizer


class ByteVocabulary:
    """The tokens of `ByteTokenizer`, with the attributes that llguidance expects of a tokenizer."""

    is_tokenizer_wrapper = True
    eos_token_id = EOS_ID
    bos_token_id = None
    special_token_ids = (EOS_ID,)

    def __init__(self) -> None:
        tokenizer = ByteTokenizer()
        self.tokens = [tokenizer.label(token) for token in range(tokenizer.vocab_size)]

    def __call__(self, text: str | bytes) -> list[int]:
        """Return the tokens of a text that the grammar forces."""
        return list(text.encode() if isinstance(text, str) else text)


def byte_vocabulary() -> LLTokenizer:
    """Return the vocabulary of the byte tokenizer."""
    vocabulary: Any = ByteVocabulary()
    return LLTokenizer(vocabulary, n_vocab=len(vocabulary.tokens), eos_token=[EOS_ID])


def checkpoint_vocabulary(file: Path, vocab_size: int, eos_ids: frozenset[int]) -> LLTokenizer:
    """Return the vocabulary of a tokenizer.json, for a model with so many logits. Takes a second for a large one.

    Raises what llguidance raises, a panic of Rust code included.
    """
    eos = sorted(token for token in eos_ids if token < vocab_size)
    return LLTokenizer(read_text(file, MAX_TABLE_BYTES), n_vocab=vocab_size, eos_token=eos or None)
