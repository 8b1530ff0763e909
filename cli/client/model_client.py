"""The interface that commands generate text through, whether the model is in this process or on a server."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

from gateway.generation.delta import ReasoningDelta, ToolCallDelta
from protocol.request import Grammar, Image, Limits, Message, Sampling


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One generation. `messages` go through the model's chat template; without messages, `prompt` is continued."""

    sampling: Sampling
    limits: Limits
    prompt: str = ""
    messages: tuple[Message, ...] = ()
    grammar: Grammar | None = None
    """The JSON schema that the answer follows."""
    tools: str = ""
    """JSON list of the tools that the model may call, in OpenAI's form; empty for none."""
    images: tuple[Image, ...] = ()
    """The images of the messages."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Token counts, finish reason and times of one answer. Times are in seconds since the request."""

    prompt_tokens: int
    completion_tokens: int
    reason: str
    first_s: float
    total_s: float
    by_token: bool = True
    """False if several tokens may arrive at once, so that the rate after the first text means nothing."""

    def line(self) -> str:
        """Format the counts and the speed for `--stats`."""
        counts = f"{self.prompt_tokens} prompt tokens, {self.completion_tokens} generated ({self.reason})"
        if not self.by_token:
            overall = self.completion_tokens / self.total_s if self.total_s > 0 else 0.0
            return f"{counts}; first text after {self.first_s * 1000:.0f} ms, {overall:.1f} tokens/s in all"
        after_first = self.total_s - self.first_s
        rate = (self.completion_tokens - 1) / after_first if self.completion_tokens > 1 and after_first > 0 else 0.0
        return f"{counts}; first token after {self.first_s * 1000:.0f} ms, then {rate:.1f} tokens/s"


Piece = str | ReasoningDelta | ToolCallDelta
"""Text of the answer, reasoning before it, or a part of a tool call. Answers have the index 0."""
Pieces = Generator[Piece | Summary, None, None]
"""Pieces of the answer, then one summary."""


class ModelClient(Protocol):
    """Generates text with one model. Used by one thread."""

    name: str
    """The model's name."""

    def stream(self, request: ModelRequest) -> Pieces:
        """Yield the answer as it is generated, then one `Summary`. Closing the generator cancels the request.

        Raises `CommandFailed`.
        """

    def close(self) -> None: ...
