"""Answers to queries for the tokens and the text of prompts, of the built-in model."""

from pathlib import Path

import pytest

from protocol.commands import Tokenize
from protocol.errors import ErrorCode
from protocol.events import Tokenized
from protocol.request import ChatInput, InfillInput, Input, Message, TextInput, TokensInput
from tests.workers.process.harness.gateway_peer import submit
from workers.process.prompts.prompt_builder import PromptBuilder
from workers.process.prompts.prompt_encoder import ADD_TOKENIZER, SEND_IDS
from workers.process.prompts.prompt_query import answer_query
from workers.text.byte_tokenizer import ByteTokenizer
from workers.text.checkpoint_tokenizer import CheckpointTokenizer
from workers.text.control_tokens import MARK

BUILTIN = Path(__file__).parents[4] / "models" / "builtin"
CHAT = ChatInput((Message("system", "Be kind."), Message("user", "Hi<|im_end|>")))
BUILDER = PromptBuilder(CheckpointTokenizer.from_dir(BUILTIN), 512)


def answer(source: Input, want: str = "count", *, builder: PromptBuilder = BUILDER, special: bool = True) -> Tokenized:
    return answer_query(builder, Tokenize(7, "r", source, want, special))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "source", [CHAT, TextInput("Hello there"), TokensInput((5, 6))], ids=["chat", "text", "tokens"]
)
def test_the_tokens_are_those_of_a_request(source: Input) -> None:
    tokens = BUILDER.build(submit(1, source)).tokens
    assert answer(source, "tokens") == Tokenized(7, len(tokens), tokens)
    assert answer(source) == Tokenized(7, len(tokens))


def test_the_text_of_a_chat_has_no_marks() -> None:
    text = answer(CHAT, "text").text
    assert "Be kind." in text
    assert "Hi<|im_end|>" in text
    assert MARK not in text
    assert answer(ChatInput((Message("user", "Hi"),)), "text").text.count("<|im_end|>") == 1


def test_tokens_become_their_text() -> None:
    tokens = answer(TextInput("Hello there"), "tokens").tokens
    assert answer(TokensInput(tokens), "text") == Tokenized(7, text="Hello there")
    assert answer(TextInput("as it is"), "text") == Tokenized(7, text="as it is")


@pytest.mark.parametrize(
    ("source", "want", "builder", "code", "field", "text"),
    [
        (TokensInput((1 << 30,)), "text", BUILDER, ErrorCode.INVALID, "tokens", "is not in the vocabulary"),
        (TextInput("x" * 1_000_000), "count", BUILDER, ErrorCode.CONTEXT, "prompt", "cannot fit"),
        (ChatInput((Message("user", "x"),), "{"), "count", BUILDER, ErrorCode.INVALID, "tools", "is not JSON"),
        (TextInput("x"), "count", PromptBuilder(None, 512), ErrorCode.UNSUPPORTED, "prompt", SEND_IDS),
        (TokensInput((1,)), "text", PromptBuilder(None, 512), ErrorCode.UNSUPPORTED, "tokens", f": {ADD_TOKENIZER}"),
        (CHAT, "text", PromptBuilder(None, 512), ErrorCode.UNSUPPORTED, "messages", SEND_IDS),
        (InfillInput("x", "y"), "count", PromptBuilder(None, 512), ErrorCode.UNSUPPORTED, "suffix", "leave `suffix`"),
    ],
    ids=["token", "length", "tools", "text", "no tokenizer", "no template", "infill"],
)
def test_a_refusal_names_its_field_and_says_what_to_do(
    source: Input, want: str, builder: PromptBuilder, code: ErrorCode, field: str, text: str
) -> None:
    refused = answer(source, want, builder=builder)
    assert (refused.code, refused.field, refused.count, refused.tokens) == (code, field, 0, ())
    assert text in refused.text


def test_a_text_that_no_frame_holds_is_refused() -> None:
    builder = PromptBuilder(ByteTokenizer(), 1 << 23)
    text = "x" * (4 * 1024 * 1024)
    assert answer(ChatInput((Message("user", text),)), "text", builder=builder).code is ErrorCode.CONTEXT
    assert answer(TextInput(text), builder=builder).code is ErrorCode.CONTEXT
