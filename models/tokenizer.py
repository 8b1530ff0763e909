"""The tokenizer of the built-in models: byte-level BPE with one token per digit, and the ChatML template."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers import models as tokenizer_models

from models.corpus.document import ChatDocument, Document

VOCABULARY = 2048
END_OF_TEXT, TURN_START, TURN_END, PAD = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"
SPECIALS = (END_OF_TEXT, TURN_START, TURN_END, "<tool_call>", "</tool_call>", "<think>", "</think>", PAD)
"""Their ids are their positions. Decoded text omits all of them except the tags of tool calls and thoughts."""
_VISIBLE = ("<tool_call>", "</tool_call>", "<think>", "</think>")

# GPT-4's split, with every digit by itself, so that a number has the same tokens everywhere.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE_FILE = Path(__file__).with_name("chat_template.jinja")


def chat_template() -> Template:
    """Compile the shipped template with the settings that transformers uses."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    return environment.from_string(TEMPLATE_FILE.read_text())


def render_chat(
    template: Template,
    messages: Iterable[Mapping[str, Any]],
    tools: Iterable[Mapping[str, Any]] = (),
    *,
    add_generation_prompt: bool,
) -> str:
    """Render a chat as text with special tokens."""
    return template.render(
        messages=list(messages), tools=list(tools) or None, add_generation_prompt=add_generation_prompt
    )


def render_document(template: Template, document: Document) -> str:
    """Render a training document as text with special tokens. A plain document ends with END_OF_TEXT."""
    if isinstance(document, ChatDocument):
        return render_chat(template, document.messages, document.tools, add_generation_prompt=False)
    return document.text + END_OF_TEXT


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Train a tokenizer of exactly VOCABULARY tokens.

    Raises `ValueError` if the texts do not yield that many.
    """
    tokenizer = Tokenizer(tokenizer_models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(text, normalized=False) for text in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise ValueError(f"the texts yield {tokenizer.get_vocab_size()} tokens, not {VOCABULARY}")
    # The trainer marks all of them as special; decoding must keep those that are part of an answer.
    state = json.loads(tokenizer.to_str())
    for token in state["added_tokens"]:
        token["special"] = token["content"] not in _VISIBLE
    return Tokenizer.from_str(json.dumps(state))


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a token. Raises `ValueError` if the tokenizer does not have it."""
    found: int | None = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the tokenizer does not have {token}")
    return found


def save_tokenizer(tokenizer: Tokenizer, directory: Path, max_positions: int) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja in the format of transformers."""
    tokenizer.save(str(directory / "tokenizer.json"))
    decoder = {
        str(place): {
            "content": text,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": text not in _VISIBLE,
        }
        for place, text in enumerate(SPECIALS)
    }
    config = {
        "added_tokens_decoder": decoder,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": TURN_END,
        "model_max_length": max_positions,
        "pad_token": PAD,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (directory / "chat_template.jinja").write_text(TEMPLATE_FILE.read_text())
