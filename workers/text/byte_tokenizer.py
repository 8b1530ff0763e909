"""Byte-level tokenizer without files: one token per byte. For scripted workers and for tests without a model."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from protocol.request import TemplateOptions
from workers.text.control_tokens import ControlTokens
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
    """Ids 0 to 255 are bytes; 256 is the end-of-sequence token. A byte that is in no text may be that of a control
    token."""

    vocab_size = 257
    longest_token = 1
    eos_ids = frozenset({EOS_ID})
    template_text = ""
    response_template: Any = None
    added_tokens: Mapping[str, int] = MappingProxyType({})
    _control, _control_id, _controls = "", -1, ControlTokens(())

    def __init__(self, control_token: str = "", control_id: int = -1) -> None:
        """`control_id` is a byte that UTF-8 does not have."""
        if control_token:
            self._control, self._control_id = control_token, control_id
            self._controls = ControlTokens([control_token])
            self.longest_token = len(control_token)
            self.added_tokens = {control_token: control_id}
        self.chat = ByteChatFormat()
        self.infill: InfillFormat | None = ByteInfillFormat()

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Return the text's UTF-8 bytes; lone surrogates become question marks. `special` has no effect."""
        if not self._control:
            return list(text.encode("utf-8", "replace"))
        parts = [list(part.encode("utf-8", "replace")) for part in text.split(self._control)]
        return [*parts[0], *(token for part in parts[1:] for token in (self._control_id, *part))]

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Return the ids of two texts, each with the end-of-sequence token behind it, and the segment of each."""
        ids = [[*self.encode(text, special=True), EOS_ID] for text in (first, second)]
        return [*ids[0], *ids[1]], [0] * len(ids[0]) + [1] * len(ids[1])

    def encode_short(self, text: str) -> list[int]:
        """See `Tokenizer.encode_short`."""
        return self.encode(text, special=False)

    def mark_control_tokens(self, values: Any) -> tuple[Any, str]:
        """See `Tokenizer.mark_control_tokens`."""
        return self._controls.mark(values) if self._control else (values, "")

    def encode_marked(self, text: str, mark: str) -> list[int]:
        """See `Tokenizer.encode_marked`."""
        parts = text.split(self._control) if self._control else [text]
        clean = [list(part.replace(mark, "").encode("utf-8", "replace")) for part in parts]
        return [*clean[0], *(token for part in clean[1:] for token in (self._control_id, *part))]

    def piece(self, token: int, *, first: bool = False) -> bytes:
        """See `Tokenizer.piece`."""
        return bytes((token,)) if 0 <= token < EOS_ID else b""

    def label(self, token: int) -> bytes:
        """See `Tokenizer.label`."""
        return b"<|im_end|>" if token == EOS_ID else self.piece(token)

    def decode(self, tokens: Iterable[int]) -> str:
        """See `Tokenizer.decode`."""
        return decode(self, tokens)
