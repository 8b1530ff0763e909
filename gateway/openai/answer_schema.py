"""The types of OpenAI's answers and errors, for the OpenAPI document. Answers are rendered without them: see
`gateway.openai.answer` and `gateway.openai.chunks`."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from gateway.routing.model_catalog import ModelState


class PromptTokensDetails(Struct, forbid_unknown_fields=True):
    """Details of `prompt_tokens`: in sparse prefill, with the tokens that were computed."""

    cached_tokens: int
    sparse_kept_tokens: int | UnsetType = UNSET


class CompletionTokensDetails(Struct, forbid_unknown_fields=True):
    """Details of `completion_tokens`."""

    reasoning_tokens: int


class UsageObject(Struct, forbid_unknown_fields=True):
    """Tokens of a whole request. The details of the completion are there if a part of it is reasoning."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class BatonExtension(Struct, forbid_unknown_fields=True):
    """Baton's own field: a worker of another kind continued the answer."""

    continued: bool


class TopLogprob(Struct, forbid_unknown_fields=True):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(Struct, forbid_unknown_fields=True):
    """A generated token and the most likely ones in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, forbid_unknown_fields=True):
    """Log-probabilities of a chat's choice."""

    content: list[ChatLogprob]
    refusal: None


class CompletionLogprobsObject(Struct, forbid_unknown_fields=True):
    """Log-probabilities of a completion's choice. Only the first token of a prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(Struct, forbid_unknown_fields=True):
    """The log-probability of a token in a prompt. The rank is null unless it is one of the most likely ones."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobsList = list[dict[str, PromptLogprob] | None]
"""One object by token id for each token of a prompt; null for the first."""


class AnswerFunction(Struct, forbid_unknown_fields=True):
    """The function of a call. `arguments` is the text of a JSON object."""

    name: str
    arguments: str


class AnswerToolCall(Struct, forbid_unknown_fields=True):
    """A call that the model made."""

    id: str
    type: Literal["function"]
    function: AnswerFunction


class AnswerMessage(Struct, forbid_unknown_fields=True):
    """The message of the assistant."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    """The same as `reasoning_content`, by the name that some clients read."""
    tool_calls: list[AnswerToolCall] | UnsetType = UNSET


class ChatChoice(Struct, forbid_unknown_fields=True):
    """One choice of a chat."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: str | int | UnsetType = UNSET
    """The stop string, or the stop token, of the request that ended the choice."""
    token_ids: list[int] | UnsetType = UNSET


class CompletionChoice(Struct, forbid_unknown_fields=True):
    """One choice of a completion."""

    index: int
    text: str
    logprobs: CompletionLogprobsObject | None
    finish_reason: Literal["stop", "length"]
    stop_reason: str | int | UnsetType = UNSET
    """The stop string, or the stop token, of the request that ended the choice."""
    token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobsList | UnsetType = UNSET


class ChatCompletion(Struct, forbid_unknown_fields=True):
    """The answer to a chat."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[ChatChoice]
    usage: UsageObject
    prompt_logprobs: PromptLogprobsList | UnsetType = UNSET
    baton: BatonExtension | UnsetType = UNSET


class Completion(Struct, forbid_unknown_fields=True):
    """The answer to a completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[CompletionChoice]
    usage: UsageObject
    baton: BatonExtension | UnsetType = UNSET


class ModelCapabilities(Struct, forbid_unknown_fields=True):
    """Features of a model that all of its workers have."""

    chat: bool
    """It has a chat template."""
    tools: bool
    reasoning: bool
    structured_output: bool
    logprobs: bool
    infill: bool
    prompt_embeds: int
    """The hidden size, if rows of embeddings are taken in place of a prompt; otherwise 0."""
    mtp: bool
    """Its own head for multi-token prediction drafts tokens."""
    vision: bool
    """It takes images."""
    embeddings: bool
    embedding_width: int
    """The numbers of an embedding; 0 if it makes none."""
    embedding_prompts: list[str]
    """The names of its prompts for texts that are embedded."""
    rerank: Literal["cross-encoder", "decoder", "embeddings"] | None
    """By what it compares texts: it is a reranker of one of two kinds, or the cosine of its embeddings is taken."""
    labels: list[str]
    """The labels by which it classifies texts."""
    generates: bool
    """It generates text. An encoder does not."""


class GenerationSettings(Struct, forbid_unknown_fields=True):
    """Settings of a model that llama.cpp's clients read."""

    n_ctx: int | None
    """Tokens of one sequence; null before the first worker."""


class Modalities(Struct, forbid_unknown_fields=True):
    """Kinds of input beside text."""

    vision: bool
    audio: bool


class ModelProperties(Struct, forbid_unknown_fields=True):
    """A model as llama.cpp's server describes it at `/props`."""

    default_generation_settings: GenerationSettings
    total_slots: int | None
    """Sequences that one worker computes at once; null before the first worker."""
    model_alias: str
    modalities: Modalities
    build_info: str


class ModelArchitecture(Struct, forbid_unknown_fields=True):
    """Kinds of input and output of a model."""

    input_modalities: list[Literal["text", "image"]]
    output_modalities: list[Literal["text"]]


class Model(Struct, forbid_unknown_fields=True):
    """One model. What only its workers know is null until they have loaded it for the first time."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    """The model itself, or the one that an adapter is applied to."""
    parent: str | None
    """The model that an adapter is applied to; null for a model."""
    max_model_len: int | None
    model_context: int | None
    """The context of the checkpoint."""
    context_bound: str | None
    """By what `max_model_len` is less; null if it is not."""
    aliases: list[str]
    state: ModelState
    problem: str | None
    """Why it could not be loaded, while requests are refused for it."""
    backend: str | None
    quantization: str
    """As the server's settings have it; empty: that of the checkpoint."""
    kv_dtype: str
    """Type of the KV cache, likewise; `auto` is the model's."""
    draft_model: str | None
    """The model that drafts tokens for it; null if there is none."""
    slots: int | None
    """Requests that one worker computes at once."""
    slots_bound: str | None
    """By what `slots` are fewer than the settings have: `model`, for one that only mlx-lm describes; otherwise null."""
    adapter: str | None
    """The LoRA adapter that is applied to it; null if there is none."""
    architecture: ModelArchitecture | None
    capabilities: ModelCapabilities | None


class ModelList(Struct, forbid_unknown_fields=True):
    """All models."""

    object: Literal["list"]
    data: list[Model]


class ErrorDetails(Struct, forbid_unknown_fields=True):
    """Description of an error: `param` is the path of the field at fault, `code` one of a closed set."""

    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "timeout_error", "server_error"]
    param: str | None
    code: str


class ErrorAnswer(Struct, forbid_unknown_fields=True):
    """The body of every error."""

    error: ErrorDetails
