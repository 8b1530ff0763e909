"""What the worker needs from a tokenizer. x, `ByteTokenizer` for scripts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]


class ChatFormat(Protocol):
    """A model's way to write a conversation as one prompt."""

    @property
    def takes_tools(self) -> bool:
        """Tools have a place in the prompt; otherwise they would be left out without a word."""

    def render(
        self, messages: Messages, tools: Tools | None = None, *, add_generation_prompt: bool = True, now: int = 0
    ) -> str:
        """The prompt, its special tokens spelled out. A template that asks for the date is told that of `now`, seconds
        since 1970; 0 is the clock's. Raises `workers.text.template.TemplateError`."""


class Tokenizer(Protocol):
    """Text to tokens, and each token's bytes; decoding is their concatenation, so it can go on token by token."""

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""

    @property
    def longest_token(self) -> int:
        """Characters of text that one token stands for at most."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""

    @property
    def chat(self) -> ChatFormat | None:
        """None when the model has no chat template."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids. With `special` the tokens that the model wants around a plain prompt (such as BOS) are added."""

    def piece(self, token: int, *, first: bool = False) -> bytes:
        """The bytes that `token` adds to the text; none for special and unknown tokens.

        `first` is for the token that a text begins with: some tokenizers spell a space there that is not in the text.
        """

    def label(self, token: int) -> bytes:
        """What to call a token in a report: its bytes, or a special token's name; nothing for unknown ones."""

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of a whole sequence, special tokens left out; bytes that are not UTF-8 become U+FFFD."""


def decode(tokenizer: Tokenizer, tokens: Iterable[int]) -> str:
    """`Tokenizer.decode` from its pieces."""
    parts: list[bytes] = []
    for token in tokens:
        piece = tokenizer.piece(token, first=not parts)
        if piece or (not parts and tokenizer.piece(token)):
            parts.append(piece)
    return b"".join(parts).decode("utf-8", "replace")
