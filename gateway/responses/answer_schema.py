"""The types of answers of the Responses API, for the OpenAPI document. Answers are rendered without them: see
`gateway.responses.answer`."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from gateway.openai.answer_schema import BatonExtension, ChatLogprob
from gateway.responses.items.input_schema import InputItem

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(Struct, forbid_unknown_fields=True, tag_field="type", tag="output_text"):
    """Text of the answer."""

    text: str
    annotations: list[Any]
    logprobs: list[ChatLogprob]


class ReasoningText(Struct, forbid_unknown_fields=True, tag_field="type", tag="reasoning_text"):
    """Text that the model thought."""

    text: str


class OutputMessage(Struct, forbid_unknown_fields=True, tag_field="type", tag="message"):
    """A message of the assistant."""

    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class OutputReasoning(Struct, forbid_unknown_fields=True, tag_field="type", tag="reasoning"):
    """Reasoning before the answer. `encrypted_content` is there if the request includes it."""

    id: str
    status: ItemStatus
    summary: list[Any]
    content: list[ReasoningText]
    encrypted_content: str | UnsetType = UNSET


class OutputFunctionCall(Struct, forbid_unknown_fields=True, tag_field="type", tag="function_call"):
    """A call of a function, whose `arguments` are JSON."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class ResponseFailure(Struct, forbid_unknown_fields=True):
    """Why a response failed after it had begun."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class IncompleteReason(Struct, forbid_unknown_fields=True):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class InputTokensDetails(Struct, forbid_unknown_fields=True):
    """Details of `input_tokens`: in sparse prefill, with the tokens that were computed."""

    cached_tokens: int
    cache_write_tokens: int
    sparse_kept_tokens: int | UnsetType = UNSET


class OutputTokensDetails(Struct, forbid_unknown_fields=True):
    """Details of `output_tokens`."""

    reasoning_tokens: int


class ResponseUsageObject(Struct, forbid_unknown_fields=True):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class EchoedReasoning(Struct, forbid_unknown_fields=True):
    """The options of the reasoning."""

    effort: str | None
    summary: None


class EchoedText(Struct, forbid_unknown_fields=True):
    """The options of the text."""

    format: dict[str, Any]
    verbosity: Literal["medium"]


class ResponseAnswerObject(Struct, forbid_unknown_fields=True, kw_only=True):
    """A response in any of its states."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    completed_at: int | None
    error: ResponseFailure | None
    incomplete_details: IncompleteReason | None
    model: str
    output: list[OutputMessage | OutputReasoning | OutputFunctionCall]
    usage: ResponseUsageObject | None
    baton: BatonExtension | UnsetType = UNSET
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: EchoedReasoning
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool
    temperature: float | None
    text: EchoedText
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float | None
    truncation: Literal["disabled"]
    user: str | None


class ItemList(Struct, forbid_unknown_fields=True):
    """A page of input items."""

    object: Literal["list"]
    data: list[InputItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedResponse(Struct, forbid_unknown_fields=True):
    """A response that was dropped."""

    id: str
    object: Literal["response.deleted"]
    deleted: Literal[True]
