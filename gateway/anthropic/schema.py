"""The bodies of requests: the fields of Anthropic's Messages API and Baton's own, with their bounds."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from protocol.bounds import (
    MAX_MESSAGES,
    MAX_NAME,
    MAX_SEED,
    MAX_STOPS,
    MAX_TEXT,
    MAX_TOKENS,
    MAX_TOP_K,
    MIN_KEEP,
    Label,
    Name,
    Stop,
    Text,
)

MAX_BLOCKS = 1024
MAX_SIGNATURE = MAX_TEXT
MAX_USER_ID = 1024

Signature = Annotated[str, Meta(max_length=MAX_SIGNATURE)]
StopSequences = Annotated[tuple[Stop, ...], Meta(max_length=MAX_STOPS)]


class CacheBreakpoint(Struct, forbid_unknown_fields=True, kw_only=True):
    """A mark up to which a prompt is to be kept for later requests. Prefixes are cached without it, too."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    scope: Literal["global", "organization", "workspace"] | None = None


class TextBlock(Struct, tag_field="type", tag="text", forbid_unknown_fields=True, kw_only=True, gc=False):
    """Text."""

    text: Text
    cache_control: CacheBreakpoint | None = None
    citations: Any = None


class Base64Image(Struct, tag_field="type", tag="base64", forbid_unknown_fields=True, kw_only=True, gc=False):
    """An image file in base64."""

    media_type: Label
    data: str


class ImageLink(Struct, tag_field="type", tag="url", forbid_unknown_fields=True, kw_only=True, gc=False):
    """An image by its URL."""

    url: str


class ImageBlock(Struct, tag_field="type", tag="image", forbid_unknown_fields=True, kw_only=True, gc=False):
    """An image, in a message of the user or in the result of a call."""

    source: Base64Image | ImageLink
    cache_control: CacheBreakpoint | None = None


class ThinkingBlock(Struct, tag_field="type", tag="thinking", forbid_unknown_fields=True, kw_only=True):
    """Thinking of the assistant. The signature is not verified."""

    thinking: Text
    signature: Signature = ""
    cache_control: CacheBreakpoint | None = None


class RedactedThinkingBlock(Struct, tag_field="type", tag="redacted_thinking", forbid_unknown_fields=True):
    """Thinking that another server encrypted. It is left out of the prompt."""

    data: Signature
    cache_control: CacheBreakpoint | None = None


class ToolUseBlock(Struct, tag_field="type", tag="tool_use", forbid_unknown_fields=True, kw_only=True):
    """A call of a tool by the assistant."""

    id: Name
    name: Name
    input: dict[str, Any]
    cache_control: CacheBreakpoint | None = None
    caller: Any = None
    toolset_name: Any = None


class ToolResultBlock(Struct, tag_field="type", tag="tool_result", forbid_unknown_fields=True, kw_only=True):
    """The result of a call."""

    tool_use_id: Name
    content: Text | Annotated[tuple[TextBlock | ImageBlock, ...], Meta(max_length=MAX_BLOCKS)] | None = None
    is_error: bool | None = None
    cache_control: CacheBreakpoint | None = None
    toolset_name: Any = None


ContentBlock = TextBlock | ImageBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock
Blocks = Annotated[tuple[ContentBlock, ...], Meta(max_length=MAX_BLOCKS)]


class InputMessage(Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """One message. Consecutive ones of the user, or of the assistant, are one turn."""

    role: Literal["user", "assistant", "system"]
    content: Text | Blocks


class ClientTool(Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool that the client runs."""

    name: Name
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: CacheBreakpoint | None = None
    # Without effect: arguments are always streamed as they are generated.
    eager_input_streaming: bool | None = None
    # Refused when they would change something: see `gateway.anthropic.unsupported`.
    allowed_callers: Any = None
    defer_loading: Any = None
    input_examples: Any = None


class AutoChoice(Struct, tag_field="type", tag="auto", forbid_unknown_fields=True):
    """The model decides whether to call tools."""

    disable_parallel_tool_use: bool | None = None


class AnyChoice(Struct, tag_field="type", tag="any", forbid_unknown_fields=True):
    """The model calls one tool at least."""

    disable_parallel_tool_use: bool | None = None


class NamedChoice(Struct, tag_field="type", tag="tool", forbid_unknown_fields=True, kw_only=True):
    """The model calls this tool."""

    name: Name
    disable_parallel_tool_use: bool | None = None


class NoneChoice(Struct, tag_field="type", tag="none", forbid_unknown_fields=True):
    """The model calls no tool."""


Choice = AutoChoice | AnyChoice | NamedChoice | NoneChoice
Display = Literal["summarized", "omitted"]


class ThinkingEnabled(Struct, tag_field="type", tag="enabled", forbid_unknown_fields=True, kw_only=True):
    """The model thinks before its answer, for `budget_tokens` at most."""

    budget_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
    display: Display | None = None


class ThinkingDisabled(Struct, tag_field="type", tag="disabled", forbid_unknown_fields=True):
    """The model answers without thinking, if its template can ask for that."""


class ThinkingAdaptive(Struct, tag_field="type", tag="adaptive", forbid_unknown_fields=True):
    """The model decides how much it thinks, as without `thinking`."""

    display: Display | None = None


Thinking = ThinkingEnabled | ThinkingDisabled | ThinkingAdaptive


class JsonFormat(Struct, forbid_unknown_fields=True, kw_only=True):
    """The answer is JSON that a schema allows."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct, forbid_unknown_fields=True, kw_only=True):
    """`effort` is what chat templates call `reasoning_effort`; `max` is their `xhigh`."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None
    task_budget: Any = None


class RequestMetadata(Struct, forbid_unknown_fields=True, kw_only=True):
    """A label of the client, without effect."""

    user_id: Annotated[str, Meta(max_length=MAX_USER_ID)] | None = None


class CountBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/messages/count_tokens`: the fields that the prompt is made of, and those that clients send along."""

    model: Name | None = None
    messages: Annotated[tuple[InputMessage, ...], Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: Text | Annotated[tuple[TextBlock, ...], Meta(max_length=MAX_BLOCKS)] | None = None
    tools: tuple[ClientTool, ...] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None
    cache_control: CacheBreakpoint | None = None
    # Refused when they would change something: see `gateway.anthropic.unsupported`.
    compaction: Any = None
    context_management: Any = None
    mcp_servers: Any = None
    speed: Any = None


class MessagesBody(CountBody, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/messages`. `seed`, `speculate`, `sparse_prefill`, `sparse_prefill_keep`, `cache_salt` and `resume_s`
    are Baton's own."""

    max_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
    stream: bool | None = None
    stop_sequences: StopSequences | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=MAX_TOP_K)] | None = None
    metadata: RequestMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)] | None = None
    speculate: bool | None = None
    sparse_prefill: bool | None = None
    sparse_prefill_keep: Annotated[float, Meta(ge=MIN_KEEP, le=1)] | None = None
    cache_salt: Annotated[str, Meta(max_length=MAX_NAME)] | None = None
    resume_s: Annotated[float, Meta(ge=0)] | None = None
    # Refused when they would change something: see `gateway.anthropic.unsupported`.
    billing_policy: Any = None
    container: Any = None
    diagnostics: Any = None
    fallback_credit_token: Any = None
    fallbacks: Any = None
    inference_geo: Any = None
    thread: Any = None
