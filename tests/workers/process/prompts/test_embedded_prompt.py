"""Prompts with rows of embeddings, as they come from the wire."""

import numpy as np
import pytest

from protocol.errors import ErrorCode
from protocol.prefix_digests import PrefixDigests
from protocol.request import EmbeddedInput, EmbeddingRows, TokensInput
from tests.workers.process.output_processor.stepped_worker import submit
from workers.process.prompts.cost import CHARACTERS_PER_ROW, tokenize_cost
from workers.process.prompts.embedded_prompt import decoded_rows, embedded_prompt, encoded_rows, last_tokens
from workers.process.prompts.refusal import PromptRefused
from workers.process.prompts.tokenize_queue import MAX_INLINE_COST

VALUES = np.array([[1.0, -0.5], [3.0, 65280.0]], np.float32)
BFLOAT16 = EmbeddingRows("bfloat16", 2, (VALUES.view(np.uint32) >> 16).astype("<u2").tobytes())


def test_all_types_give_the_same_rows() -> None:
    """Each of the values is one of all three types."""
    forms = [BFLOAT16, encoded_rows(VALUES), encoded_rows(VALUES.astype(np.float16))]
    assert [form.dtype for form in forms] == ["bfloat16", "float32", "float16"]
    assert [form.count for form in forms] == [2, 2, 2]
    for form in forms:
        assert decoded_rows(form).tobytes() == VALUES.tobytes()


def test_tokens_and_rows_keep_their_order() -> None:
    source = EmbeddedInput((TokensInput((7, 8)), BFLOAT16, TokensInput((9,)), encoded_rows(VALUES[:1])))
    tokens, embeddings = embedded_prompt(source, 6)
    assert embeddings is not None
    assert tokens == (7, 8, *embeddings.ids[:2], 9, embeddings.ids[0])
    assert source.count == len(tokens)
    assert source.data_bytes == 2 * 2 * 2 + 2 * 4
    assert (last_tokens(tokens), last_tokens(tokens[:-1]), last_tokens((7, 8))) == ((), (9,), (7, 8))
    assert embedded_prompt(EmbeddedInput((TokensInput((7, 8)),)), 2) == ((7, 8), None)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ((EmbeddingRows("float32", 2, bytes(12)),), "12 bytes are not whole rows of 2 numbers of float32"),
        ((EmbeddingRows("bfloat16", 3, bytes(2)),), "2 bytes are not whole rows"),
        ((BFLOAT16, EmbeddingRows("float32", 1, bytes(4))), "different numbers of values"),
        ((EmbeddingRows("bfloat16", 1, b"\x80\x7f"),), "not finite"),
        ((EmbeddingRows("float16", 1, b"\x00\x7e"),), "not finite"),
    ],
)
def test_what_are_no_rows_is_refused_by_name(rows: tuple[EmbeddingRows, ...], problem: str) -> None:
    with pytest.raises(PromptRefused, match=problem) as refused:
        embedded_prompt(EmbeddedInput(rows), 9)
    assert (refused.value.code, refused.value.field) == (ErrorCode.INVALID, "prompt_embeds")


def test_more_rows_than_the_context_are_refused_before_they_are_read() -> None:
    source = EmbeddedInput((EmbeddingRows("float16", 1, b"\x00\x7e" * 3),))
    with pytest.raises(PromptRefused, match="prompt of 3 tokens") as refused:
        embedded_prompt(source, 2)
    assert (refused.value.code, refused.value.field) == (ErrorCode.CONTEXT, "prompt_embeds")
    with pytest.raises(PromptRefused, match="not finite"):
        embedded_prompt(source, 3)


def test_many_short_rows_are_not_prepared_on_the_event_loop() -> None:
    def cost(count: int, width: int) -> int:
        rows = EmbeddingRows("float16", width, bytes(2 * count * width))
        return tokenize_cost(submit(1, EmbeddedInput((rows,))))

    most = MAX_INLINE_COST // CHARACTERS_PER_ROW
    assert cost(most - 8, 1) <= MAX_INLINE_COST < cost(most, 1)
    assert cost(16, 2048) <= MAX_INLINE_COST < cost(2048, 2048)


def test_digests_of_prefixes_differ_by_rows_and_from_tokens() -> None:
    """There are digests from 128 bytes on: 32 tokens or rows."""

    def digests(*segments: TokensInput | EmbeddingRows) -> tuple[int, ...]:
        return PrefixDigests.of(EmbeddedInput(segments), "tenant").digests()

    many = encoded_rows(np.arange(80, dtype=np.float32).reshape(40, 2))
    others = encoded_rows(np.arange(1, 81, dtype=np.float32).reshape(40, 2))
    tokens = TokensInput(tuple(range(40)))
    found = [digests(many), digests(others), digests(tokens)]
    assert [len(each) for each in found] == [1, 1, 1]
    assert len(set(found)) == 3
    assert digests(tokens, many)[0] == PrefixDigests.of(tokens, "tenant").digests()[0]
