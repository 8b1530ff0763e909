"""The types of Ollama's answers and errors, for the OpenAPI document. Answers are rendered without them: see
`gateway.ollama.answer` and `gateway.ollama.models`."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType


class OllamaCallFunction(Struct, forbid_unknown_fields=True):
    """The function of a call."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(Struct, forbid_unknown_fields=True):
    """A call of a tool."""

    id: str
    function: OllamaCallFunction


class OllamaAnswerMessage(Struct, forbid_unknown_fields=True):
    """The message of the assistant."""

    role: Literal["assistant"]
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaExtension(Struct, forbid_unknown_fields=True):
    """Baton's own field: a worker of another kind continued the answer."""

    continued: bool


class _OllamaEnd(Struct, kw_only=True):
    """The fields of the last object. Durations are in nanoseconds."""

    model: str
    created_at: str
    done: Literal[True]
    done_reason: Literal["stop", "length"]
    total_duration: int
    load_duration: int
    prompt_eval_count: int
    prompt_eval_duration: int
    eval_count: int
    eval_duration: int
    sparse_kept_tokens: int | UnsetType = UNSET
    baton: OllamaExtension | UnsetType = UNSET


class _OllamaLoaded(Struct, kw_only=True):
    """The fields of an answer to a request for a model to be loaded."""

    model: str
    created_at: str
    done: Literal[True]
    done_reason: Literal["load", "unload"]


class OllamaChatLoaded(_OllamaLoaded, forbid_unknown_fields=True, kw_only=True):
    """The answer to a chat without messages."""

    message: OllamaAnswerMessage


class OllamaGenerateLoaded(_OllamaLoaded, forbid_unknown_fields=True, kw_only=True):
    """The answer to an empty prompt."""

    response: str


class OllamaChatAnswer(_OllamaEnd, forbid_unknown_fields=True, kw_only=True):
    """The answer to a chat."""

    message: OllamaAnswerMessage


class OllamaGenerateAnswer(_OllamaEnd, forbid_unknown_fields=True, kw_only=True):
    """The answer to a prompt."""

    response: str
    thinking: str | UnsetType = UNSET


class OllamaDetails(Struct, forbid_unknown_fields=True):
    """Details of a checkpoint; empty, as the gateway does not know them."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(Struct, forbid_unknown_fields=True):
    """One model."""

    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    modified_at: str


class OllamaTags(Struct, forbid_unknown_fields=True):
    """All models."""

    models: list[OllamaModel]


class OllamaRunningModel(Struct, forbid_unknown_fields=True):
    """One model that has a worker."""

    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str
    size_vram: int
    context_length: int | None


class OllamaRunning(Struct, forbid_unknown_fields=True):
    """The models that have workers."""

    models: list[OllamaRunningModel]


class OllamaShow(Struct, forbid_unknown_fields=True):
    """Description of a model."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, str | int | None]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(Struct, forbid_unknown_fields=True):
    """The version of Ollama whose API this is."""

    version: str


class OllamaErrorAnswer(Struct, forbid_unknown_fields=True):
    """The body of every error of Ollama's API."""

    error: str
