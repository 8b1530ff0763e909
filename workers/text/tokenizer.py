"""Tokenizer interface of a worker. `CheckpointTokenizer` implements it, and `ByteTokenizer` for scripted models."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from protocol.request import TemplateOptions

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]
NO_OPTIONS = TemplateOptions()


class ChatFormat(Protocol):
    """Renders a conversation as one prompt in the format of a model."""

    @property
    def takes_tools(self) -> bool:
        """The format has a place for tools. Without one they would be dropped silently."""

    def render(
        self,
        messages: Messages,
        tools: Tools | None = None,
        *,
        add_generation_prompt: bool = True,
        now: int = 0,
        options: TemplateOptions = NO_OPTIONS,
    ) -> str:
        """Return the prompt, with special tokens written out. `now`, in seconds since 1970, is the date for templates
        that ask for it; 0 is the current time. `options` are variables for templates that read them. Raises
        `workers.text.template.TemplateError`."""


class InfillFormat(Protocol):
    """Makes a prompt of the text before and after a gap, in the format of a model."""

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end the text of a gap, besides the model's own end-of-sequence tokens."""

    def encode(self, prefix: str, suffix: str) -> list[int]:
        """Return the tokens of a prompt. Control tokens in the texts are ordinary text."""

    def text(self, prefix: str, suffix: str) -> str:
        """Return the text of a prompt, with control tokens written out."""


class Tokenizer(Protocol):
    """Encodes text, and knows the bytes of each token. Decoding concatenates them, so it can be incremental."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""

    @property
    def longest_token(self) -> int:
        """Maximum number of text characters in one token."""

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Ids of the tokens that are found in a text before it is split: control tokens and others, by their text."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""

    @property
    def template_text(self) -> str:
        """The text of all chat templates, by which the notation of answers is recognized."""

    @property
    def response_template(self) -> Any:
        """The description of the notation of answers that the checkpoint has; None for none."""

    @property
    def chat(self) -> ChatFormat | None:
        """The chat format; None for a model without a chat template."""

    @property
    def infill(self) -> InfillFormat | None:
        """The format of fill-in-the-middle prompts; None for a model without control tokens for them."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Return token ids. `special` adds the tokens that the model expects around a plain prompt, such as BOS.

        Control tokens in the text become their ids.
        """

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Return token ids of two texts that a model reads together, with the tokens that it expects around and between
        them, and the segment of each (`token_type_ids`). Control tokens in the texts become their ids."""

    def encode_short(self, text: str) -> list[int]:
        """Return the ids of a short text without special tokens. On any thread, also while another one encodes."""

    def mark_control_tokens(self, values: Any) -> tuple[Any, str]:
        """Mark the control tokens in the strings of JSON values, which become ordinary text in `encode_marked`.

        Returns the values and the mark; without control tokens, or if they are to be parsed, the values as they are and
        no mark.
        """

    def encode_marked(self, text: str, mark: str) -> list[int]:
        """Return the ids of a prompt that a template has rendered from marked values, without the marks."""

    def piece(self, token: int, *, first: bool = False) -> bytes:
        """Return the bytes that `token` adds to the text; none for special and unknown tokens.

        `first` marks the first token of a text, where some tokenizers write a space that is not part of the text.
        """

    def label(self, token: int) -> bytes:
        """Return a token's name in reports: its bytes, or a special token's name; empty for an unknown token."""

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of a whole sequence without special tokens; bytes that are not UTF-8 become U+FFFD."""


def decode(tokenizer: Tokenizer, tokens: Iterable[int]) -> str:
    """Implement `Tokenizer.decode` by concatenating the bytes of each token."""
    parts: list[bytes] = []
    for token in tokens:
        piece = tokenizer.piece(token, first=not parts)
        if piece or (not parts and tokenizer.piece(token)):
            parts.append(piece)
    return b"".join(parts).decode("utf-8", "replace")
