"""What a request asks for: its input, its sampling and its limits."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from protocol.bounds import (
    MAX_BIAS,
    MAX_BIASES,
    MAX_MESSAGES,
    MAX_PENALTY,
    MAX_REPETITION,
    MAX_SEED,
    MAX_STOPS,
    MAX_TEMPERATURE,
    MAX_TOKENS,
    MAX_TOOLS_JSON,
    MAX_TOP_K,
    MAX_TOP_LOGPROBS,
    MIN_REPETITION,
    Milliseconds,
    Stop,
    Text,
    Time,
    TokenId,
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


Penalty = Annotated[float, Meta(ge=-MAX_PENALTY, le=MAX_PENALTY)]


class Bias(Struct, frozen=True, array_like=True, gc=False):
    """What is added to one token's logit."""

    token: TokenId
    bias: Annotated[float, Meta(ge=-MAX_BIAS, le=MAX_BIAS)]


class Sampling(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """How the next token is sampled. The noise depends on (seed, position) alone, never on the batch.

    Logits are changed by logit_bias, then repetition_penalty, then frequency_penalty and presence_penalty together
    (`workers/sampling/logit_edits.py`), then by temperature, top_k, top_p, min_p (`workers/sampling/sample.py`).
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
    presence_penalty: Penalty = 0.0
    """Subtracted from the logits of tokens that were generated already."""
    frequency_penalty: Penalty = 0.0
    """Subtracted from a token's logit once for each time that it was generated."""
    repetition_penalty: Annotated[float, Meta(ge=MIN_REPETITION, le=MAX_REPETITION)] = 1.0
    """Divides positive and multiplies other logits of tokens that are in the prompt or were generated."""
    logit_bias: Annotated[tuple[Bias, ...], Meta(max_length=MAX_BIASES)] = ()
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    """Report log-probabilities: of the sampled token and of this many most likely ones; None is no report."""


class Limits(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """When the answer ends."""

    max_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    """Tokens to generate at most; None is up to the end of the context."""
    stop: Annotated[tuple[Stop, ...], Meta(max_length=MAX_STOPS)] = ()
    """The text ends before the first of these."""
    ignore_eos: bool = False
    deadline_ms: Milliseconds = 0
    """Milliseconds from the worker's receipt until the request fails with `DEADLINE`; 0 is no deadline."""
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] = 0
    """An end-of-sequence token is not sampled before so many tokens are generated."""


FinishReason = Literal["stop", "length", "cancelled"]
"""`stop`: end-of-sequence token or stop string; `length`: `max_tokens` or the end of the context."""
