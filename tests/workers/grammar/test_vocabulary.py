"""Vocabularies: llguidance takes each token for the bytes that the detokenizer emits for it."""

import json
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from models import builtin_path
from tests.checkpoints import make_tokenizer
from tests.workers.text.samples import byte_level, sentencepiece, write
from workers.grammar.vocabulary import (
    ByteVocabulary,
    SpecialTokens,
    TokenizerVocabulary,
    byte_vocabulary,
    special_tokens,
    tokenizer_vocabulary,
)
from workers.text.byte_tokenizer import EOS_ID, ByteTokenizer
from workers.text.checkpoint_tokenizer import CheckpointTokenizer

TEXT = '{"name": "Zoë", "age": 3, "tags": []}'
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": "array"}},
    "required": ["name", "age", "tags"],
}


def assert_same_bytes(tokenizer: CheckpointTokenizer, vocabulary: LLTokenizer) -> None:
    special = special_tokens(vocabulary)
    for token in range(tokenizer.vocab_size):
        if token not in special.names:
            # No text has the byte 0xFF, and llguidance never allows it.
            piece = tokenizer.piece(token)
            assert vocabulary.decode_bytes([token]) == (b"" if piece == b"\xff" else piece), token
        else:
            assert special.names[token] == tokenizer.label(token).decode()


@pytest.mark.parametrize("beyond", [0, 5, 64])
def test_each_token_has_the_bytes_of_its_text(tmp_path: Path, beyond: int) -> None:
    """A model may have more logits than its tokenizer has tokens."""
    make_tokenizer(tmp_path)
    for folder in (tmp_path, builtin_path()):
        tokenizer = CheckpointTokenizer.from_dir(folder)
        vocabulary = tokenizer_vocabulary(tokenizer, tokenizer.vocab_size + beyond)
        assert vocabulary.vocab_size == tokenizer.vocab_size + beyond
        assert vocabulary.eos_tokens == sorted(tokenizer.eos_ids)
        assert_same_bytes(tokenizer, vocabulary)
        matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_regex("(.|\\n)*"), log_level=0)
        mask = matcher.compute_bitmask()
        allowed = {token for token in range(vocabulary.vocab_size) if mask[token // 8] >> token % 8 & 1}
        assert len(allowed) > 200
        assert (
            allowed <= {token for token in range(vocabulary.vocab_size) if tokenizer.piece(token)} | tokenizer.eos_ids
        )


@pytest.mark.parametrize("kind", [byte_level, sentencepiece])
def test_a_text_is_allowed_token_by_token(tmp_path: Path, kind: Any) -> None:
    """Also where the tokenizer writes a space before a text, which the grammar does not allow."""
    tokenizer = CheckpointTokenizer.from_dir(write(tmp_path, kind()))
    tokenizer.eos_ids = frozenset({0})
    vocabulary = tokenizer_vocabulary(tokenizer, tokenizer.vocab_size)
    assert_same_bytes(tokenizer, vocabulary)
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(SCHEMA))
    matcher = LLMatcher(vocabulary, grammar, log_level=0)
    for token in vocabulary.greedy_tokenize(TEXT):
        mask = matcher.compute_bitmask()
        allowed = [each for each in range(vocabulary.vocab_size) if mask[each // 8] >> each % 8 & 1]
        assert allowed
        if token not in allowed:  # the grammar forces other tokens of the same text
            (token,) = allowed
        assert matcher.consume_token(token), matcher.get_error()
        if matcher.is_stopped():
            break
    assert not matcher.is_error()


def test_forced_texts_have_the_usual_tokens_of_the_model() -> None:
    tokenizer = CheckpointTokenizer.from_dir(builtin_path())
    vocabulary = TokenizerVocabulary(tokenizer, tokenizer.vocab_size)
    vocabulary.loaded()
    assert vocabulary('{"name": ') == tokenizer.encode('{"name": ', special=False)


def test_forced_texts_that_the_tokenizer_changes_have_other_tokens(tmp_path: Path) -> None:
    tokenizer = CheckpointTokenizer.from_dir(write(tmp_path, sentencepiece()))
    tokenizer.eos_ids = frozenset({0})
    vocabulary = TokenizerVocabulary(tokenizer, tokenizer.vocab_size)
    vocabulary.loaded()
    text = "The cat"
    assert b"".join(tokenizer.piece(token) for token in tokenizer.encode_short(text)) != text.encode()
    assert b"".join(tokenizer.piece(token) for token in vocabulary(text)) == text.encode()


def test_a_tokenizer_without_an_end_is_refused(tmp_path: Path) -> None:
    tokenizer = CheckpointTokenizer.from_dir(write(tmp_path, byte_level()))
    with pytest.raises(ValueError, match="no end-of-sequence token"):
        tokenizer_vocabulary(tokenizer, tokenizer.vocab_size)


def test_the_byte_tokenizer() -> None:
    for vocabulary in (byte_vocabulary(), tokenizer_vocabulary(ByteTokenizer(), 257)):
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
