"""Bodies in: decoded once, at the door, into typed structs, and turned into the sequences that they ask for."""

import secrets
import time
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from gateway.errors import invalid
from gateway.options import Generation, refuse_set
from gateway.refusals import refusal
from gateway.settings import GatewaySettings
from protocol.bounds import (
    MAX_BIAS,
    MAX_BIASES,
    MAX_FRAMES_PER_MESSAGE,
    MAX_MESSAGES,
    MAX_NAME,
    MAX_REPETITION,
    MAX_SEED,
    MAX_STOPS,
    MAX_TEMPERATURE,
    MAX_TEXT,
    MAX_TOKENS,
    MAX_TOP_K,
    MAX_TOP_LOGPROBS,
    MIN_REPETITION,
    Name,
    Stop,
    Text,
    TokenId,
)
from protocol.request import Bias, ChatInput, Input, Limits, Message, Penalty, Sampling, TextInput, TokensInput

MAX_PARTS = 256
MAX_LABEL = 512
MAX_METADATA = 16
COMPLETION_MAX_TOKENS = 16
"""What OpenAI's completions endpoint generates when nothing is said."""

Label = Annotated[str, Meta(max_length=MAX_LABEL)]
TokenCount = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
TopLogprobs = Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)]
Biases = Annotated[dict[TokenId, Annotated[float, Meta(ge=-MAX_BIAS, le=MAX_BIAS)]], Meta(max_length=MAX_BIASES)]
Stops = Stop | Annotated[tuple[Stop, ...], Meta(max_length=MAX_STOPS)]
TokenPrompt = Annotated[tuple[TokenId, ...], Meta(min_length=1, max_length=MAX_TOKENS)]
Prompt = Text | Annotated[tuple[Text | TokenId | TokenPrompt, ...], Meta(min_length=1, max_length=MAX_TOKENS)]


class StreamOptions(Struct, forbid_unknown_fields=True):
    """`include_usage` adds a last chunk with the counts of the whole request. `resume_s`, Baton's own, is how many
    seconds the stream is kept for a client whose connection ended."""

    include_usage: bool | None = None
    resume_s: Annotated[float, Meta(ge=0)] | None = None
    include_obfuscation: Literal[False] | None = None


class _Body(Generation, kw_only=True):
    """What both endpoints share. OpenAI's defaults; `top_k`, `min_p`, `repetition_penalty`, `min_tokens`, `ignore_eos`
    and `return_token_ids` are added, under the names that they have in vLLM."""

    model: Name
    n: Annotated[int, Meta(ge=1, le=MAX_FRAMES_PER_MESSAGE)] | None = None
    max_tokens: TokenCount | None = None
    temperature: Annotated[float, Meta(ge=0, le=MAX_TEMPERATURE)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=MAX_TOP_K)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=MIN_REPETITION, le=MAX_REPETITION)] | None = None
    logit_bias: Biases | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] | None = None
    stop: Stops | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: Annotated[str, Meta(max_length=MAX_NAME)] | None = None
    # Labels of the client's own, which change no answer.
    user: Label | None = None
    metadata: Annotated[dict[Label, Label], Meta(max_length=MAX_METADATA)] | None = None
    prompt_cache_key: Label | None = None
    safety_identifier: Label | None = None


class CompletionBody(_Body, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/completions`."""

    prompt: Prompt
    logprobs: TopLogprobs | Literal[False] | None = None
    """How many most likely tokens to report with each."""
    # Refused when they ask for something: see `gateway.options`.
    best_of: Any = None
    echo: Any = None
    suffix: Any = None


class TextPart(Struct, forbid_unknown_fields=True):
    """One part of a message's content; text is the only kind."""

    type: Literal["text"]
    text: Text


class ChatMessage(Struct, forbid_unknown_fields=True, kw_only=True):
    """One message. `developer` is what newer clients call `system`, and reaches the template under that name."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[tuple[TextPart, ...], Meta(min_length=1, max_length=MAX_PARTS)]
    # Refused when they say something, for they would not reach the template; replies sent back carry many as `null`.
    annotations: Any = None
    audio: Any = None
    function_call: Any = None
    name: Any = None
    refusal: Any = None
    tool_call_id: Any = None
    tool_calls: Any = None


class ChatBody(_Body, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[tuple[ChatMessage, ...], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    # Refused when they ask for something: see `gateway.options`.
    audio: Any = None
    function_call: Any = None
    functions: Any = None
    modalities: Any = None
    parallel_tool_calls: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    response_format: Any = None
    tool_choice: Any = None
    tools: Any = None
    verbosity: Any = None
    web_search_options: Any = None


@dataclass(frozen=True, slots=True)
class Choice:
    """One sequence that a request asks for, without the number that the router gives it."""

    input: Input
    sampling: Sampling
    limits: Limits
    tenant: str = ""
    """Whose KV it may reuse, and who may reuse its: those with the same."""


@dataclass(frozen=True, slots=True)
class Form:
    """How an answer is to be written: all that is kept of a request until its answer was taken."""

    chat: bool
    per_prompt: int
    """`n`: the choices `i * n .. i * n + n - 1` belong to prompt `i`."""
    stream: bool
    include_usage: bool
    return_token_ids: bool
    logprobs: bool
    """Every token is reported with its log-probability."""
    resume_s: float = 0.0
    """Seconds that the stream is kept for its client to come back; 0: its end is the client's."""

    @property
    def by_token(self) -> bool:
        """The answer tells of each token, not of text alone."""
        return self.return_token_ids or self.logprobs


@dataclass(frozen=True, slots=True)
class Plan:
    """A request, understood: the sequences in the order of their `index`, and the form of the answer."""

    model: str
    choices: tuple[Choice, ...]
    form: Form


Body = TypeVar("Body", CompletionBody, ChatBody)


class RequestDecoder:
    """Decodes the bodies of the two endpoints into plans. Every refusal is an `ApiError` that names its field."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._completion = msgspec.json.Decoder(CompletionBody)
        self._chat = msgspec.json.Decoder(ChatBody)

    def completion(self, raw: bytes) -> Plan:
        """Decode a body of `/v1/completions`."""
        body = _decode(self._completion, raw)
        refuse_set(body)
        prompts = _prompts(body.prompt)
        limit = body.max_tokens or COMPLETION_MAX_TOKENS
        top = None if body.logprobs is False else body.logprobs
        return self._plan(body, prompts, limit, top, size=len(raw))

    def chat(self, raw: bytes) -> Plan:
        """Decode a body of `/v1/chat/completions`."""
        body = _decode(self._chat, raw)
        refuse_set(body)
        limit = body.max_completion_tokens
        if limit is None:
            limit = body.max_tokens
        elif body.max_tokens not in (None, limit):
            raise invalid("max_tokens", "`max_tokens` and `max_completion_tokens` differ; send one of them")
        if body.top_logprobs and not body.logprobs:
            raise invalid("top_logprobs", "`top_logprobs` goes with `logprobs: true` only")
        top = (body.top_logprobs or 0) if body.logprobs else None
        messages = tuple(_message(message, f"messages[{i}]") for i, message in enumerate(body.messages))
        return self._plan(body, [ChatInput(messages, now=int(time.time()))], limit, top, size=len(raw))

    def _plan(
        self, body: CompletionBody | ChatBody, inputs: list[Input], limit: int | None, top: int | None, *, size: int
    ) -> Plan:
        n = body.n or 1
        self._check_fanout(len(inputs), n, size)
        if body.stream_options is not None and not body.stream:
            raise invalid("stream_options", "`stream_options` goes with `stream: true` only")
        if limit is not None and (body.min_tokens or 0) > limit:
            raise invalid("min_tokens", f"`min_tokens` is over the {limit} tokens that are generated at most")
        limits = Limits(
            max_tokens=limit,
            stop=_stops(body.stop),
            ignore_eos=bool(body.ignore_eos),
            deadline_ms=int(self._settings.request_timeout_s * 1000),
            min_tokens=body.min_tokens or 0,
        )
        # A seed gives a prompt the same choices whatever stands beside it; without one, equal prompts should differ.
        first = secrets.randbits(63) if body.seed is None else body.seed
        seeds = (first + (index if body.seed is None else index % n) for index in range(len(inputs) * n))
        choices = tuple(
            Choice(inputs[index // n], _sampling(body, seed & MAX_SEED, top), limits, body.cache_salt or "")
            for index, seed in enumerate(seeds)
        )
        options = body.stream_options or StreamOptions()
        form = Form(
            chat=isinstance(body, ChatBody),
            per_prompt=n,
            stream=bool(body.stream),
            include_usage=bool(options.include_usage),
            return_token_ids=bool(body.return_token_ids),
            logprobs=top is not None,
            resume_s=self._resume_s(options),
        )
        return Plan(body.model, choices, form)

    def _resume_s(self, options: StreamOptions) -> float:
        wanted, most = options.resume_s or 0.0, self._settings.resume_most_s
        if wanted > most:
            kept = f"for {most:g} s at most" if most else "not"
            raise invalid("stream_options.resume_s", f"`stream_options.resume_s`: streams are kept {kept} here")
        return wanted

    def _check_fanout(self, prompts: int, n: int, size: int) -> None:
        settings, count = self._settings, prompts * n
        field = "n" if n > 1 else "prompt"
        if count > settings.max_choices:
            asked = f"prompts times n, {prompts} x {n}, are {count} sequences"
            raise invalid(field, f"{asked}; one request may have {settings.max_choices}")
        if count > 1 and count * size > min(settings.max_fanout_bytes, settings.max_total_body_bytes):
            raise invalid(field, f"{count} sequences of a body of {size} bytes are too much for one request")


def _decode(decoder: "msgspec.json.Decoder[Body]", raw: bytes) -> Body:
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise refusal(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(None, f"the body is not valid JSON: {str(error)[:200]}", "invalid_json") from error
    except RecursionError as error:
        raise invalid(None, "the body is nested too deeply", "invalid_json") from error


def _prompts(prompt: Any) -> list[Input]:
    """The inputs of a prompt: a string, strings, token ids or lists of token ids; not a mixture."""
    if isinstance(prompt, str):
        return [TextInput(prompt)]
    kinds = {type(item) for item in prompt}
    if len(kinds) > 1:
        raise invalid("prompt", "`prompt` mixes strings, token ids and lists; it must be one of them")
    kind = kinds.pop()
    if kind is str:
        return [TextInput(item) for item in prompt]
    if kind is int:
        return [TokensInput(prompt)]
    return [TokensInput(item) for item in prompt]


def _message(message: ChatMessage, at: str) -> Message:
    refuse_set(message, f"{at}.")
    content = message.content
    if not isinstance(content, str):
        content = "\n".join(part.text for part in content)
        if len(content) > MAX_TEXT:
            raise invalid(f"{at}.content", f"`{at}.content` has over {MAX_TEXT} characters")
    return Message("system" if message.role == "developer" else message.role, content)


def _stops(stop: str | tuple[str, ...] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else stop


def _sampling(body: CompletionBody | ChatBody, seed: int, logprobs: int | None) -> Sampling:
    return Sampling(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=body.top_k or 0,
        top_p=1.0 if body.top_p is None else body.top_p,
        min_p=body.min_p or 0.0,
        seed=seed,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        logit_bias=tuple(Bias(token, bias) for token, bias in (body.logit_bias or {}).items()),
        logprobs=logprobs,
    )
