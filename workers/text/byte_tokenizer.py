"""Byte-level tokenizer without files: one token per byte. For scripted workers and for tests without a model."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from protocol.request import TemplateOptions
from workers.text.tokenizer import NO_OPTIONS, InfillFormat, Messages, Tools, decode

EOS_ID = 256
_TURN_END = "<|im_end|>\n"


class ByteChatFormat:
    """ChatML in plain characters, without a template engine and without tools."""

    takes_tools = False

    def render(
        self,
        messages: Messages,
        tools: Tools | None = None,
        *,
        add_generation_prompt: bool = True,
        now: int = 0,
        options: TemplateOptions = NO_OPTIONS,
    ) -> str:
        """See `ChatFormat.render`."""
        turns = [f"<|im_start|>{message['role']}\n{message['content']}{_TURN_END}" for message in messages]
        if add_generation_prompt:
            turns.append("<|im_start|>assistant\n")
        return "".join(turns)


class ByteInfillFormat:
    """The order prefix, suffix, middle, in plain characters."""

    ends: frozenset[int] = frozenset()

    def encode(self, prefix: str, suffix: str) -> list[int]:
        """See `InfillFormat.encode`."""
        return list(self.text(prefix, suffix).encode("utf-8", "replace"))

    def text(self, prefix: str, suffix: str) -> str:
        """See `InfillFormat.text`."""
        return f"<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>"


class ByteTokenizer:
    """Ids 0 to 255 are bytes; 256 is the end-of-sequence token."""

    vocab_size = 257
    longest_token = 1
    eos_ids = frozenset({EOS_ID})
    template_text = ""
    response_template: Any = None
    added_tokens: Mapping[str, int] = MappingProxyType({})

    def __init__(self) -> None:
        self.chat = ByteChatFormat()
        self.infill: InfillFormat | None = ByteInfillFormat()

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Return the text's UTF-8 bytes; lone surrogates become question marks. `special` has no effect."""
        return list(text.encode("utf-8", "replace"))

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Return the ids of two texts, each with the end-of-sequence token behind it, and the segment of each."""
        ids = [[*self.encode(text, special=True), EOS_ID] for text in (first, second)]
        return [*ids[0], *ids[1]], [0] * len(ids[0]) + [1] * len(ids[1])

    def encode_short(self, text: str) -> list[int]:
        """See `Tokenizer.encode_short`."""
        return self.encode(text, special=False)

    def mark_control_tokens(self, values: Any) -> tuple[Any, str]:
        """Return the values: no text is a control token here."""
        return values, ""

    def encode_marked(self, text: str, mark: str) -> list[int]:
        """See `Tokenizer.encode_marked`."""
        return self.encode(text, special=False)

    def piece(self, token: int, *, first: bool = False) -> bytes:
        """See `Tokenizer.piece`."""
        return bytes((token,)) if 0 <= token < EOS_ID else b""

    def label(self, token: int) -> bytes:
        """See `Tokenizer.label`."""
        return b"<|im_end|>" if token == EOS_ID else self.piece(token)

    def decode(self, tokens: Iterable[int]) -> str:
        """See `Tokenizer.decode`."""
        return decode(self, tokens)
