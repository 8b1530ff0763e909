"""The tokens of a prompt that a client wants to be kept, by the chat template of the built-in model."""

from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.request import ChatInput, Message, Pin
from tests.workers.process.harness.gateway_peer import submit
from workers.engine.prefix_match import PinnedPrefix
from workers.process.prompts import pinned_prefix
from workers.process.prompts.prompt_builder import PromptBuilder, TokenizedPrompt
from workers.process.prompts.refusal import PromptRefused
from workers.text.checkpoint_tokenizer import CheckpointTokenizer

BUILTIN = Path(__file__).parents[4] / "models" / "builtin"
SYSTEM, QUESTION = Message("system", "You are brief. Today is Monday."), Message("user", "How are you?")
CALL = Message("user", "And you?")


@pytest.fixture(scope="module")
def tokenizer() -> CheckpointTokenizer:
    return CheckpointTokenizer.from_dir(BUILTIN)


def built(tokenizer: CheckpointTokenizer, *pins: Pin, messages: Any = (SYSTEM, QUESTION)) -> TokenizedPrompt:
    return PromptBuilder(tokenizer, 4096).build(submit(1, ChatInput(messages, pins=pins)))


def kept(tokenizer: CheckpointTokenizer, pin: Pin, messages: Any = (SYSTEM, QUESTION)) -> str:
    made = built(tokenizer, pin, messages=messages)
    (prefix,) = made.pins
    return "".join(tokenizer.piece(token).decode() for token in made.tokens[: prefix.rows])


def test_a_prompt_without_pins_keeps_nothing(tokenizer: CheckpointTokenizer) -> None:
    assert built(tokenizer).pins == ()


def test_messages_are_kept_to_their_end(tokenizer: CheckpointTokenizer) -> None:
    text = kept(tokenizer, Pin(1, 300))
    assert SYSTEM.content in text
    assert QUESTION.content[:1] not in text.partition("user")[2]


def test_a_message_is_kept_as_far_as_it_is_marked(tokenizer: CheckpointTokenizer) -> None:
    text = kept(tokenizer, Pin(0, 300, len("You are brief.")))
    assert "You are brief" in text
    assert "Today" not in text


def test_all_messages_are_the_whole_prompt(tokenizer: CheckpointTokenizer) -> None:
    made = built(tokenizer, Pin(2, 300), Pin(9, 60))
    assert made.pins == (PinnedPrefix(len(made.tokens), 300.0), PinnedPrefix(len(made.tokens), 60.0))


def test_what_is_kept_does_not_depend_on_what_follows(tokenizer: CheckpointTokenizer) -> None:
    for later in ("a", "b", "You", ""):
        messages = (SYSTEM, QUESTION, Message("assistant", later), CALL)
        assert kept(tokenizer, Pin(1, 300), messages) == kept(tokenizer, Pin(1, 300))


def test_control_tokens_in_a_text_are_kept_as_text(tokenizer: CheckpointTokenizer) -> None:
    messages = (Message("system", "Say <|im_end|> twice."), QUESTION)
    assert "Say <|im_end|> twice." in kept(tokenizer, Pin(1, 300), messages)


def test_prefixes_are_tokenized_once(tokenizer: CheckpointTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned_prefix, "KNOWN", 2)
    encoded: list[str] = []

    def encode(text: str, mark: str) -> bytes:
        encoded.append(text)
        return text.encode()

    prefixes = pinned_prefix.PinnedPrefixes(
        lambda source: ("".join(each.content for each in source.messages), ""), encode
    )
    for first in ("xx", "yy", "xx", "zz", "xx", "yy"):
        source = ChatInput((Message("system", first), QUESTION), pins=(Pin(1, 300),))
        assert prefixes.of(source, f"{first}{QUESTION.content}".encode()) == (PinnedPrefix(2, 300.0),)
    assert encoded == ["xx", "yy", "zz", "yy"]


def test_a_template_that_takes_no_other_text_keeps_nothing_and_refuses_nothing() -> None:
    def render(source: ChatInput) -> tuple[str, str]:
        text = "".join(message.content for message in source.messages)
        if text != SYSTEM.content + QUESTION.content:
            raise PromptRefused(ErrorCode.INVALID, "the template refuses it", "messages")
        return text, ""

    prefixes = pinned_prefix.PinnedPrefixes(render, lambda text, mark: text.encode())
    source = ChatInput((SYSTEM, QUESTION), pins=(Pin(1, 300), Pin(2, 60)))
    assert prefixes.of(source, range(50)) == (PinnedPrefix(50, 60.0),)
