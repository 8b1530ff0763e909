"""The bodies of requests: the fields of Ollama's API, with their bounds."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from protocol.bounds import (
    MAX_IMAGES,
    MAX_MESSAGES,
    MAX_SEED,
    MAX_STOP_CHARS,
    MAX_STOPS,
    MAX_TEMPERATURE,
    MAX_TOKENS,
    MAX_TOOL_CALLS,
    MAX_TOP_K,
    MIN_KEEP,
    Label,
    Name,
    Text,
)
from protocol.request import Penalty

StopString = Annotated[str, Meta(max_length=MAX_STOP_CHARS)]
"""A stop string; an empty one is ignored."""
Images = Annotated[tuple[str, ...], Meta(max_length=MAX_IMAGES)]
"""Image files in base64."""
MAX_NUM_CTX = (1 << 31) - 1
Think = bool | Literal["low", "medium", "high", "max"]


class ModelOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    """`options`. `num_ctx` has no effect: the context is the server's setting, and a prompt that does not fit is
    refused. Ollama lowers a larger one, too. `speculate` and those of sparse prefill are Baton's own."""

    temperature: Annotated[float, Meta(ge=0, le=MAX_TEMPERATURE)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_TOP_K)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-1, le=MAX_SEED)] | None = None
    num_predict: Annotated[int, Meta(ge=-2, le=MAX_TOKENS)] | None = None
    num_ctx: Annotated[int, Meta(ge=0, le=MAX_NUM_CTX)] | None = None
    stop: StopString | Annotated[tuple[StopString, ...], Meta(max_length=MAX_STOPS)] | None = None
    typical_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repeat_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    speculate: bool | None = None
    sparse_prefill: bool | None = None
    sparse_prefill_keep: Annotated[float, Meta(ge=MIN_KEEP, le=1)] | None = None
    # Without effect on an answer: how the server uses memory and devices, and details of options that are off.
    f16_kv: Any = None
    logits_all: Any = None
    low_vram: Any = None
    main_gpu: Any = None
    mirostat_eta: Any = None
    mirostat_tau: Any = None
    num_batch: Any = None
    num_gpu: Any = None
    num_keep: Any = None
    num_thread: Any = None
    numa: Any = None
    use_mlock: Any = None
    use_mmap: Any = None
    vocab_only: Any = None
    # Refused when they would change something: see `gateway.ollama.unsupported`.
    mirostat: Any = None
    penalize_newline: Any = None
    repeat_last_n: Any = None
    tfs_z: Any = None


class CalledFunction(Struct, forbid_unknown_fields=True, kw_only=True):
    """The function of a call, and its arguments."""

    name: Name
    arguments: dict[str, Any] = {}
    index: int | None = None
    description: str | None = None


class CalledTool(Struct, forbid_unknown_fields=True, kw_only=True):
    """A call of a tool by the assistant. Without an `id`, results belong to the calls in their order."""

    function: CalledFunction
    id: Label | None = None
    type: Literal["function"] | None = None


class OllamaMessage(Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """One message."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Text | None = None
    thinking: Text | None = None
    tool_calls: Annotated[tuple[CalledTool, ...], Meta(max_length=MAX_TOOL_CALLS)] | None = None
    tool_name: Label | None = None
    tool_call_id: Label | None = None
    images: Images | None = None


class ToolFunction(Struct, forbid_unknown_fields=True, kw_only=True):
    """A function that the model may call."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class OllamaTool(Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool that the client runs."""

    function: ToolFunction
    type: Literal["function"] | None = None


class _OllamaFields(Struct, kw_only=True):
    """Fields of both endpoints."""

    model: Name
    stream: bool | None = None
    format: Any = None
    """`"json"`, or a JSON schema."""
    options: ModelOptions | None = None
    think: Think | None = None
    keep_alive: str | float | None = None
    """Seconds, or a text such as "5m", without a request after which the model is unloaded; negative: never."""
    # Refused when they would change something: see `gateway.ollama.unsupported`.
    logprobs: Any = None
    shift: Any = None
    top_logprobs: Any = None
    truncate: Any = None


class OllamaChatBody(_OllamaFields, forbid_unknown_fields=True, kw_only=True):
    """`POST /api/chat`. Without messages, it asks for the model to be loaded."""

    messages: Annotated[tuple[OllamaMessage, ...], Meta(max_length=MAX_MESSAGES)] = ()
    tools: tuple[OllamaTool, ...] | None = None


class OllamaGenerateBody(_OllamaFields, forbid_unknown_fields=True, kw_only=True):
    """`POST /api/generate`. A `raw` prompt is not rendered by the chat template, nor is one with a `suffix`, before
    which the answer ends. Without a prompt, it asks for the model to be loaded."""

    prompt: Text = ""
    suffix: Text | None = None
    system: Text | None = None
    raw: bool | None = None
    images: Images | None = None
    # Refused when they would change something: see `gateway.ollama.unsupported`.
    context: Any = None
    template: Any = None


class OllamaShowBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /api/show`. `name` is an earlier name of `model`."""

    model: Label | None = None
    name: Label | None = None
    verbose: bool | None = None
