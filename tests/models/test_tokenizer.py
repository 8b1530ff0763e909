"""The tokenizer is lossless, and the template renders as in transformers and in a worker."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from models import builtin_path, draft_path
from models.corpus.document import ChatDocument
from models.corpus.mixture import take
from models.tokenizer import SPECIALS, VOCABULARY, chat_template, render_chat, render_document, train_tokenizer
from workers.text.template import ChatTemplate

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Wetter in Köln & <Umgebung>",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Köln"}}}
CALL_AS_TEXT = {"type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Köln"}'}}
CHATS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = {
    "one question": ([{"role": "user", "content": "Hi"}], None),
    "system": ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], None),
    "tools": ([{"role": "user", "content": "Hi"}], [WEATHER]),
    "system and tools": ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], [WEATHER]),
    "call and results": (
        [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": None, "tool_calls": [CALL, CALL_AS_TEXT]},
            {"role": "tool", "content": "21"},
            {"role": "tool", "content": "22"},
            {"role": "assistant", "content": "It is warm."},
            {"role": "user", "content": "Thanks!"},
        ],
        [WEATHER],
    ),
    "text before a call": (
        [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL]},
        ],
        [WEATHER],
    ),
}


@pytest.fixture(scope="module")
def shipped() -> Tokenizer:
    return Tokenizer.from_file(str(builtin_path() / "tokenizer.json"))


@given(text=st.text(max_size=80))
@settings(max_examples=150, deadline=None)
def test_any_text_survives_the_round_trip(shipped: Tokenizer, text: str) -> None:
    assert shipped.decode(shipped.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text


def test_digits_are_single_tokens(shipped: Tokenizer) -> None:
    assert shipped.encode("2048").tokens == ["2", "0", "4", "8"]


def test_special_tokens_have_the_first_ids_and_are_never_split(shipped: Tokenizer) -> None:
    assert [shipped.token_to_id(text) for text in SPECIALS] == list(range(len(SPECIALS)))
    assert shipped.encode("".join(SPECIALS)).ids == list(range(len(SPECIALS)))
    assert shipped.get_vocab_size() == VOCABULARY


def test_decoded_text_keeps_the_tags_of_calls_and_thoughts(shipped: Tokenizer) -> None:
    text = "<think>\n1\n</think>\n\n<tool_call>\n{}\n</tool_call><|im_end|>"
    assert shipped.decode(shipped.encode(text).ids) == text.removesuffix("<|im_end|>")


def test_training_it_again_gives_the_same_tokenizer() -> None:
    template = chat_template()
    texts = [render_document(template, document) for document in take(1, 3000)]
    assert train_tokenizer(texts).to_str() == train_tokenizer(texts).to_str()


def test_too_little_text_is_refused() -> None:
    with pytest.raises(ValueError, match="not 2048"):
        train_tokenizer(["one text"])


@pytest.mark.parametrize("prompt", [True, False], ids=["to be answered", "complete"])
@pytest.mark.parametrize("name", CHATS)
def test_the_template_renders_as_transformers_does(name: str, prompt: bool) -> None:
    transformers = pytest.importorskip("transformers")
    messages, offered = CHATS[name]
    loaded = transformers.AutoTokenizer.from_pretrained(builtin_path())
    expected = loaded.apply_chat_template(messages, offered, tokenize=False, add_generation_prompt=prompt)
    assert render_chat(chat_template(), messages, offered or (), add_generation_prompt=prompt) == expected


@pytest.mark.parametrize("name", CHATS)
def test_the_template_renders_as_a_worker_does(name: str) -> None:
    messages, offered = CHATS[name]
    worker = ChatTemplate({"default": (builtin_path() / "chat_template.jinja").read_text()})
    rendered = worker.render(messages, offered)
    assert render_chat(chat_template(), messages, offered or (), add_generation_prompt=True) == rendered


def test_transformers_encodes_a_chat_to_the_same_tokens(shipped: Tokenizer) -> None:
    transformers = pytest.importorskip("transformers")
    loaded = transformers.AutoTokenizer.from_pretrained(builtin_path())
    document = next(each for each in take(11, 200) if isinstance(each, ChatDocument) and each.tools)
    text = render_document(chat_template(), document)
    assert loaded(text)["input_ids"] == shipped.encode(text).ids
    assert (loaded.eos_token, loaded.pad_token, loaded.bos_token) == ("<|im_end|>", "<|pad|>", None)


def test_both_models_have_the_same_tokenizer_and_template() -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (builtin_path() / name).read_bytes() == (draft_path() / name).read_bytes()
