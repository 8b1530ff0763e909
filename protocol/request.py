"""What a request asks for: its input, its sampling and its limits."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from protocol.bounds import (
    MAX_MESSAGES,
    MAX_SEED,
    MAX_STOPS,
    MAX_TEMPERATURE,
    MAX_TOKENS,
    MAX_TOOLS_JSON,
    MAX_TOP_K,
    Milliseconds,
    Stop,
    Text,
    Time,
    Tokens,
)


class Message(Struct, frozen=True, array_like=True, gc=False):
    """One chat message as the template sees it."""

    role: Annotated[str, Meta(min_length=1, max_length=32)]
    content: Text


class TextInput(Struct, frozen=True, array_like=True, tag="text", gc=False):
    """A plain prompt; the worker tokenizes it as it is."""

    text: Text


class TokensInput(Struct, frozen=True, array_like=True, tag="tokens", gc=False):
    """A prompt that is tokens already."""

    tokens: Tokens


class ChatInput(Struct, frozen=True, array_like=True, tag="chat", omit_defaults=True):
    """Messages that the worker renders with the model's chat template."""

    messages: Annotated[tuple[Message, ...], Meta(min_length=1, max_length=MAX_MESSAGES)]
    tools_json: Annotated[str, Meta(max_length=MAX_TOOLS_JSON)] = ""
    """A JSON list of tool definitions for the template, or nothing."""
    now: Time = 0
    """The time that the template is told, in seconds since 1970, for the prompt to come out the same on every worker
    that gets the request. 0 is the worker's own clock."""


Input = TextInput | TokensInput | ChatInput


class Sampling(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """How the next token is drawn. The noise depends on (seed, position) alone, never on the batch.

    The order of the filters is temperature, top_k, top_p, min_p, as in `workers/sampling.py`, which defines them.
    """

    temperature: Annotated[float, Meta(ge=0.0, le=MAX_TEMPERATURE)] = 0.0
    """0 is greedy: the smallest token id among the highest logits."""
    top_k: Annotated[int, Meta(ge=0, le=MAX_TOP_K)] = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """Keep the smallest set of most likely tokens that has at least this mass."""
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    """Keep tokens with at least this fraction of the most likely token's probability."""
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)] = 0


class Limits(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """When the answer ends."""

    max_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    """Tokens to generate at most; None is up to the end of the context."""
    stop: Annotated[tuple[Stop, ...], Meta(max_length=MAX_STOPS)] = ()
    """The text ends before the first of these."""
    ignore_eos: bool = False
    deadline_ms: Milliseconds = 0
    """Milliseconds from the worker's receipt until the request fails with `DEADLINE`; 0 is no deadline."""


FinishReason = Literal["stop", "length", "cancelled"]
"""`stop`: end-of-sequence token or stop string; `length`: `max_tokens` or the end of the context."""
