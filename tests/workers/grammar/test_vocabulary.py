"""Vocabularies: llguidance takes each token for the bytes that the detokenizer emits for it."""

from pathlib import Path
from typing import Any

import pytest
from llguidance import LLTokenizer

from models import builtin_path
from tests.checkpoints import make_tokenizer
from tests.workers.text.samples import byte_level, sentencepiece, write
from workers.grammar.vocabulary import (
    ByteVocabulary,
    SpecialTokens,
    byte_vocabulary,
    checkpoint_vocabulary,
    special_tokens,
)
from workers.text.byte_tokenizer import EOS_ID
from workers.text.checkpoint_tokenizer import CheckpointTokenizer


def assert_bytes(vocabulary: LLTokenizer, token: int, piece: bytes) -> None:
    """No text has the byte 0xFF, and llguidance never allows it."""
    assert vocabulary.decode_bytes([token]) == (b"" if piece == b"\xff" else piece), token


def assert_same_bytes(folder: Path, beyond: int = 0) -> None:
    tokenizer = CheckpointTokenizer.from_dir(folder)
    size = tokenizer.vocab_size + beyond
    vocabulary = checkpoint_vocabulary(folder / "tokenizer.json", size, tokenizer.eos_ids)
    assert vocabulary.vocab_size == size
    special = special_tokens(vocabulary)
    assert tokenizer.eos_ids <= special.names.keys()
    for token in range(size):
        if token not in special.names:
            assert_bytes(vocabulary, token, tokenizer.piece(token))
        else:
            assert special.names[token] == (tokenizer.label(token).decode() or f"<[{token}]>")


def test_the_builtin_model() -> None:
    assert_same_bytes(builtin_path())


@pytest.mark.parametrize("beyond", [0, 5, 64])
def test_a_model_may_have_more_logits_than_tokens(tmp_path: Path, beyond: int) -> None:
    make_tokenizer(tmp_path)
    assert_same_bytes(tmp_path, beyond)


@pytest.mark.parametrize("kind", [byte_level, sentencepiece])
def test_tokens_of_other_kinds(tmp_path: Path, kind: Any) -> None:
    folder = write(tmp_path, kind())
    tokenizer = CheckpointTokenizer.from_dir(folder)
    vocabulary = checkpoint_vocabulary(folder / "tokenizer.json", tokenizer.vocab_size, frozenset({0}))
    special = special_tokens(vocabulary)
    for token in range(tokenizer.vocab_size):
        if token not in special.names and tokenizer.piece(token):
            assert_bytes(vocabulary, token, tokenizer.piece(token))


def test_the_byte_tokenizer() -> None:
    vocabulary = byte_vocabulary()
    assert vocabulary.eos_tokens == [EOS_ID]
    assert vocabulary.decode_bytes(list("Zoë".encode())) == "Zoë".encode()
    assert special_tokens(vocabulary) == SpecialTokens(257, (EOS_ID,), {EOS_ID: "<|im_end|>"})


def test_bytes_are_beside_special_tokens() -> None:
    vocabulary = byte_vocabulary(SpecialTokens(1000, (0,), {0: "<eos>", 900: "<tool>"}))
    assert special_tokens(vocabulary).names == {0: "<eos>", 900: "<tool>"}
    assert vocabulary.decode_bytes(vocabulary.tokenize_bytes(b"abc")) == b"abc"


def test_a_vocabulary_without_room_for_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="no room"):
        ByteVocabulary(SpecialTokens(100, (0,), {0: "<eos>"}))
