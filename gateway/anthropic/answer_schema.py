"""The types of Anthropic's answers and errors, for the OpenAPI document. Answers are rendered without them: see
`gateway.anthropic.answer` and `gateway.anthropic.events`."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType


class TextAnswer(Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Text of the answer."""

    text: str


class ThinkingAnswer(Struct, tag_field="type", tag="thinking", forbid_unknown_fields=True):
    """Thinking before the answer. The signature is a constant."""

    thinking: str
    signature: str


class ToolUseAnswer(Struct, tag_field="type", tag="tool_use", forbid_unknown_fields=True):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(Struct, forbid_unknown_fields=True):
    """Tokens of the request. The whole prompt has the sum of the three numbers of input tokens."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    service_tier: Literal["standard"]
    sparse_kept_tokens: int | UnsetType = UNSET


class MessageExtension(Struct, forbid_unknown_fields=True):
    """Baton's own field: a worker of another kind continued the answer."""

    continued: bool


class MessageObject(Struct, forbid_unknown_fields=True):
    """The message of the assistant."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextAnswer | ThinkingAnswer | ToolUseAnswer]
    stop_reason: Literal["end_turn", "max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    """The one of `stop_sequences` that ended the message."""
    stop_details: None
    usage: MessageUsage
    baton: MessageExtension | UnsetType = UNSET


class TokenCount(Struct, forbid_unknown_fields=True):
    """The length of a prompt."""

    input_tokens: int


class ModelInfo(Struct, forbid_unknown_fields=True):
    """One model. What only its workers know is null until they have loaded it for the first time."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int | None
    max_tokens: int | None


class ModelPage(Struct, forbid_unknown_fields=True):
    """One page of the models."""

    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


class MessageErrorDetails(Struct, forbid_unknown_fields=True):
    """Description of an error."""

    type: Literal[
        "api_error",
        "authentication_error",
        "conflict_error",
        "invalid_request_error",
        "not_found_error",
        "overloaded_error",
        "permission_error",
        "rate_limit_error",
        "request_too_large",
        "timeout_error",
    ]
    message: str


class MessageErrorAnswer(Struct, forbid_unknown_fields=True):
    """The body of every error of the Messages API."""

    type: Literal["error"]
    error: MessageErrorDetails
    request_id: str | None
