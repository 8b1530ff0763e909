"""Settings of one of several models: a table `[[models]]` of the file, or `--model NAME=MODEL`."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from cli.config.panels.backend_name import ALLOWED as ALLOWED_BACKENDS
from cli.config.panels.backend_name import BackendName
from gateway.models.terms import LoadTime
from protocol.bounds import MAX_ADAPTERS, MAX_COUNT, MAX_NAME, MAX_SLOTS, MAX_TOKENS
from workers.load_options import MAX_LORA_RANK
from workers.precision import KvDtype, Quantize, WindowCache

MAX_MODELS = 64
MAX_ALIASES = 16
MAX_KEEP_ALIVE_S = 10 * 365 * 86400.0
OWN = (
    "backend",
    "device",
    "dtype",
    "quantize",
    "kv_dtype",
    "window_cache",
    "context",
    "max_batch_size",
    "kv_bytes",
    "speculate",
    "draft_model",
    "mmproj",
    "adapter",
    "lora_modules",
    "max_loras",
    "max_lora_rank",
    "sparse_prefill",
    "threads",
    "threads_bind",
)
"""Settings that a model may have for itself. Without them, those of the server hold."""
NEVER = "never"


def _no_switch(value: Any) -> Any:
    """Refuse true and false as numbers."""
    if isinstance(value, bool):
        raise ValueError("a number is needed")
    return value


Number = BeforeValidator(_no_switch)
ModelName = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]


def _field(help: str, default: Any = None, allowed: str = "", **bounds: Any) -> Any:
    return Field(default, description=help, json_schema_extra={"allowed": allowed}, **bounds)


class ModelSettings(BaseModel):
    """One model. Without a value, a setting is the server's own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = _field("Name that clients use; empty uses the model's own name.", "", max_length=MAX_NAME)
    path: str = _field("Model directory, GGUF file or Hugging Face model id; empty selects the built-in model.", "")
    aliases: tuple[ModelName, ...] = _field(
        "Further names that clients may use.",
        (),
        f"a list of at most {MAX_ALIASES} names, each a text of 1 to {MAX_NAME} characters",
        max_length=MAX_ALIASES,
    )
    load: LoadTime = _field("Load it at the start, or when the first request asks for it.", "first-use")
    keep_alive_s: Annotated[float | Literal["never"] | None, Number] = _field(
        "Seconds without a request after which it is unloaded, or never. Default: 300, and never for one that is "
        "loaded at the start.",
        allowed=f"a number from 0 to {int(MAX_KEEP_ALIVE_S)}, or {NEVER!r}",
    )
    priority: Annotated[int, Number] = _field(
        "Models of a lower priority are unloaded first when another one needs their memory.", 0, ge=-100, le=100
    )
    memory_bytes: Annotated[int, Number] = _field(
        "Bytes of memory that each worker counts; 0 estimates them, and takes over what the worker reports.",
        0,
        ge=0,
        le=MAX_COUNT,
    )
    workers: Annotated[int, Number] = _field("Number of worker processes, each with the whole model.", 1, ge=1, le=64)
    standby: Annotated[int, Number] = _field("Number of additional workers on standby.", 0, ge=0, le=64)
    prefill_workers: Annotated[int, Number] = _field(
        "Number of the workers that compute long prompts for the others.", 0, ge=0, le=63
    )
    backend: BackendName | None = _field("Backend.", allowed=ALLOWED_BACKENDS)
    device: str | None = _field("Device of the backend.")
    dtype: Literal["auto", "float32", "float16", "bfloat16"] | None = _field("Number type of weights and KV cache.")
    quantize: Quantize | None = _field("Quantize the weight matrices while loading.")
    kv_dtype: KvDtype | None = _field("Type of the KV cache.")
    window_cache: WindowCache | None = _field("What layers with an attention window keep of a sequence.")
    context: Annotated[int | None, Number] = _field("Maximum tokens of prompt and answer.", ge=0, le=MAX_TOKENS)
    max_batch_size: Annotated[int | None, Number] = _field(
        "Maximum number of sequences that run at once in one worker.", ge=1, le=MAX_SLOTS
    )
    kv_bytes: Annotated[int | None, Number] = _field("Bytes of KV cache of each worker.", ge=0, le=MAX_COUNT)
    speculate: Literal["auto", "off"] | None = _field("Speculative decoding.")
    draft_model: str | None = _field("Smaller model with the same tokenizer, which drafts tokens.")
    mmproj: str | None = _field("Projector of images of a GGUF model.", min_length=1)
    adapter: str | None = _field("Directory of a LoRA adapter of mlx-lm, which is applied to the model on MLX.")
    lora_modules: tuple[str, ...] | None = _field(
        "LoRA adapters that requests may name as their model.",
        allowed=f"a list of at most {MAX_ADAPTERS} texts NAME=DIR",
        max_length=MAX_ADAPTERS,
    )
    max_loras: Annotated[int | None, Number] = _field("Maximum number of adapters.", ge=1, le=MAX_ADAPTERS)
    max_lora_rank: Annotated[int | None, Number] = _field("Maximum rank of an adapter.", ge=1, le=MAX_LORA_RANK)
    sparse_prefill: bool | None = _field("Sparse prefill.")
    threads: Annotated[int | None, Number] = _field("Compute threads of each worker.", ge=0, le=4096)
    threads_bind: str | None = _field("CPUs of the compute threads.", min_length=1)

    @field_validator("keep_alive_s")
    @classmethod
    def _in_range(cls, value: float | str | None) -> float | str | None:
        if isinstance(value, float) and not 0 <= value <= MAX_KEEP_ALIVE_S:
            raise ValueError("out of range")
        return value

    @property
    def own(self) -> dict[str, Any]:
        """The settings that it has for itself."""
        return {name: value for name in OWN if (value := getattr(self, name)) is not None}


def from_text(text: str) -> dict[str, str]:
    """Parse `NAME=MODEL` or `MODEL`, a directory or an id of the hub."""
    name, equals, path = text.partition("=")
    return {"name": name, "path": path} if equals else {"path": text}
