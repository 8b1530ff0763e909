"""The body of `POST /v1/responses`: OpenAI's fields and Baton's own, with their bounds."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from gateway.openai.schema import RepetitionPenalty, Stops, TopLogprobs
from gateway.responses.items.input_schema import InputItem
from protocol.bounds import (
    MAX_MESSAGES,
    MAX_NAME,
    MAX_SEED,
    MAX_TEMPERATURE,
    MAX_TOKENS,
    MAX_TOP_K,
    MIN_KEEP,
    Name,
    Text,
)
from protocol.request import Penalty, ReasoningEffort

MAX_METADATA = 16
MAX_INCLUDES = 16
MAX_FUNCTIONS = 256
MAX_LABEL = 512

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"

Includable = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]
FormatName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$(?![\s\S])")]
MetadataKey = Annotated[str, Meta(max_length=64)]
MetadataValue = Annotated[str, Meta(max_length=MAX_LABEL)]


class FunctionDefinition(Struct, forbid_unknown_fields=True, kw_only=True, rename={"asynchronous": "async"}):
    """A function that the model may call, which is the only kind of tool."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    # Refused when they would change something: see `gateway.responses.unsupported`.
    allowed_callers: Any = None
    asynchronous: Any = None
    defer_loading: Any = None
    output_schema: Any = None


class NamedFunction(Struct, forbid_unknown_fields=True):
    """The only function that may be called."""

    type: Literal["function"]
    name: str


class ResponseTextFormat(Struct, forbid_unknown_fields=True, kw_only=True):
    """The format of the answer's text. `name`, `schema`, `description` and `strict` go with `json_schema` only."""

    type: Literal["text", "json_object", "json_schema"]
    name: FormatName | None = None
    schema: Any = None
    description: Text | None = None
    strict: bool | None = None


class TextOptions(Struct, forbid_unknown_fields=True):
    """Options of the answer's text."""

    format: ResponseTextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningOptions(Struct, forbid_unknown_fields=True):
    """Options of the reasoning, which is reported whole as `reasoning_text`, without a summary."""

    effort: ReasoningEffort | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None


class ResponsesStreamOptions(Struct, forbid_unknown_fields=True):
    """`resume_s`, Baton's own, is how many seconds the stream is kept for a client whose connection ended."""

    include_obfuscation: Literal[False] | None = None
    resume_s: Annotated[float, Meta(ge=0)] | None = None


class ResponsesBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/responses`. `seed`, `top_k`, `min_p`, `repetition_penalty`, `presence_penalty`, `frequency_penalty`,
    `stop`, `speculate`, `sparse_prefill`, `sparse_prefill_keep`, `cache_salt` and
    `stream_options.resume_s` are additions, as in chats."""

    model: Name | None = None
    input: Text | Annotated[tuple[InputItem, ...], Meta(max_length=MAX_MESSAGES)]
    instructions: Text | None = None
    previous_response_id: Annotated[str, Meta(max_length=MAX_NAME)] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=MAX_TEMPERATURE)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_logprobs: TopLogprobs | None = None
    include: Annotated[tuple[Includable, ...], Meta(max_length=MAX_INCLUDES)] | None = None
    tools: Annotated[tuple[FunctionDefinition, ...], Meta(max_length=MAX_FUNCTIONS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    # A bound of the calls of built-in tools, of which there are none.
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    truncation: Literal["disabled"] | None = None
    service_tier: Literal["auto", "default"] | None = None
    # Labels of the client, which the response repeats.
    metadata: Annotated[dict[MetadataKey, MetadataValue], Meta(max_length=MAX_METADATA)] | None = None
    user: MetadataValue | None = None
    safety_identifier: MetadataValue | None = None
    prompt_cache_key: MetadataValue | None = None
    prompt_cache_retention: MetadataValue | None = None
    # Baton's own.
    seed: Annotated[int, Meta(ge=-1, le=MAX_SEED)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_TOP_K)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: RepetitionPenalty | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    stop: Stops | None = None
    speculate: bool | None = None
    sparse_prefill: bool | None = None
    sparse_prefill_keep: Annotated[float, Meta(ge=MIN_KEEP, le=1)] | None = None
    cache_salt: Annotated[str, Meta(max_length=MAX_NAME)] | None = None
    # Refused when they would change something: see `gateway.responses.unsupported`.
    access_programs: Any = None
    background_options: Any = None
    context_management: Any = None
    conversation: Any = None
    image: Any = None
    moderation: Any = None
    prompt: Any = None
    prompt_cache_options: Any = None
