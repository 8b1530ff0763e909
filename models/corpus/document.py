"""What the generators produce: plain texts and chats, before any tokenizer sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
"""One chat message as the OpenAI API has it: role, content and, for a tool call, tool_calls."""


@dataclass(frozen=True, slots=True)
class PlainDocument:
    """A text without roles, such as a base model continues."""

    text: str


@dataclass(frozen=True, slots=True)
class ChatDocument:
    """Messages in order, and the tools that the assistant may call."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()


Document = PlainDocument | ChatDocument


@dataclass(frozen=True, slots=True)
class Turn:
    """One question and its one right answer; `word` is the answer alone, where there is one."""

    user: str
    answer: str
    word: str = field(default="")


def chat(system: str | None, turns: Sequence[Turn]) -> ChatDocument:
    """The chat in which the turns follow one another under an optional system prompt."""
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    for turn in turns:
        messages.append({"role": "user", "content": turn.user})
        messages.append({"role": "assistant", "content": turn.answer})
    return ChatDocument(tuple(messages))
