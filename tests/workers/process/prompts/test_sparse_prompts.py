"""Requests and thresholds for sparse prefill, and the parts of a chat that are kept in any case."""

from typing import Any

import pytest

from protocol.commands import Submit
from protocol.errors import ErrorCode
from protocol.request import ChatInput, EmbeddedInput, Limits, Message, Sampling, TextInput, TokensInput
from workers.engine.sparse.sparse_request import SparsePrompt
from workers.load_options import SparseSettings
from workers.process.prompts.prompt_builder import PromptBuilder
from workers.process.prompts.refusal import PromptRefused
from workers.text.byte_tokenizer import ByteTokenizer

ON = SparseSettings()
LONG = SparseSettings(tokens=400, keep=0.5)
TOKENS = TokensInput((65,) * 400)


def sparse_of(settings: SparseSettings | None = ON, source: Any = TOKENS, **fields: Any) -> SparsePrompt | None:
    limits = Limits(**{name: fields.pop(name) for name in tuple(fields) if name in Limits.__struct_fields__})
    builder = PromptBuilder(ByteTokenizer(), 4096, vocab_size=257, sparse=settings)
    return builder.build(Submit(1, "r", source, Sampling(), limits, **fields)).sparse


@pytest.mark.parametrize(
    ("settings", "tokens", "wanted", "sparse"),
    [
        (None, 400, None, False),
        (None, 400, False, False),
        (ON, 400, None, False),
        (ON, 400, True, True),
        (LONG, 399, None, False),
        (LONG, 400, None, True),
        (LONG, 400, False, False),
        (LONG, 399, True, True),
    ],
)
def test_a_request_or_a_threshold_asks_for_it(
    settings: SparseSettings | None, tokens: int, wanted: bool | None, sparse: bool
) -> None:
    found = sparse_of(settings, TokensInput((65,) * tokens), sparse_prefill=wanted)
    assert (found is not None) == sparse


def test_the_part_that_is_kept_is_that_of_the_request_or_the_default() -> None:
    assert sparse_of(sparse_prefill=True) == SparsePrompt(0.3, ((0, 32), (336, 400)))
    assert sparse_of(LONG, sparse_keep=0.1) == SparsePrompt(0.1, ((0, 32), (336, 400)))
    assert sparse_of(LONG) == SparsePrompt(0.5, ((0, 32), (336, 400)))


def test_what_an_earlier_worker_has_decided_holds_without_the_setting() -> None:
    for settings in (None, LONG):
        assert sparse_of(settings, kept=(0, 32, 300, 400)) == SparsePrompt(kept=((0, 32), (300, 400)))
        assert sparse_of(settings, sparse_prefill=True, kept=()) is None
    with pytest.raises(PromptRefused, match="a start without an end"):
        sparse_of(kept=(0, 32, 300))


@pytest.mark.parametrize(
    ("settings", "fields", "says"),
    [
        (None, {}, "start the server with --sparse-prefill"),
        (ON, {"prompt_logprobs": 0}, "log-probabilities of the prompt need all of it"),
        (ON, {"max_tokens": 0}, "without an answer"),
    ],
    ids=["no setting", "logprobs", "no answer"],
)
def test_what_is_not_possible_is_refused_if_the_request_asks_for_it(
    settings: SparseSettings | None, fields: dict[str, Any], says: str
) -> None:
    with pytest.raises(PromptRefused, match=says) as refused:
        sparse_of(settings, sparse_prefill=True, **fields)
    assert (refused.value.code, refused.value.field) == (ErrorCode.UNSUPPORTED, "sparse_prefill")
    assert sparse_of(settings and LONG, **fields) is None, "a threshold asks for nothing that is not possible"


@pytest.mark.parametrize("settings", [None, ON], ids=["no setting", "no threshold"])
def test_a_part_of_a_prompt_that_nothing_makes_sparse_is_refused(settings: SparseSettings | None) -> None:
    with pytest.raises(PromptRefused, match="`sparse_prefill_keep` has no effect without `sparse_prefill`") as refused:
        sparse_of(settings, sparse_keep=0.5)
    assert (refused.value.code, refused.value.field) == (ErrorCode.UNSUPPORTED, "sparse_prefill_keep")
    assert sparse_of(settings, sparse_keep=0.5, sparse_prefill=False) is None


def test_rows_of_embeddings_are_computed_whole() -> None:
    assert sparse_of(LONG, EmbeddedInput((TOKENS,))) is None


def text_before(source: ChatInput, index: int) -> int:
    """The tokens of the byte tokenizer's prompt before the content of a message."""
    builder = PromptBuilder(ByteTokenizer(), 4096, vocab_size=257)
    return builder.text(source).index(source.messages[index].content)


def test_the_system_prompt_and_the_last_turn_of_the_user_are_kept() -> None:
    messages = [("system", "s" * 90), ("user", "u" * 300), ("assistant", "a" * 300), ("user", "q" * 120)]
    chat = ChatInput(tuple(Message(*each) for each in messages))
    found = sparse_of(source=chat, sparse_prefill=True)
    assert found is not None
    head, turn = found.forced
    assert head == (0, text_before(chat, 1))
    assert turn[0] == text_before(chat, 3)


def test_of_a_long_turn_its_end_is_kept() -> None:
    chat = ChatInput((Message("user", "u" * 900),))
    found = sparse_of(source=chat, sparse_prefill=True)
    assert found is not None
    (_, first), (start, end) = found.forced
    assert (first, end - start) == (32, 256)
    assert sparse_of(source=TextInput("u" * 900), sparse_prefill=True) == SparsePrompt(0.3, ((0, 32), (836, 900)))
