"""All settings, each with its default, its range and the description that the help shows."""

from typing import Annotated, Any, Literal

from pydantic import PrivateAttr, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from cli.config.model_settings import MAX_MODELS, ModelSettings, from_text
from cli.config.panels.backend_name import ALLOWED as ALLOWED_BACKENDS
from cli.config.panels.backend_name import BackendName
from cli.config.panels.field import ENGINE, GATEWAY, MODEL, PANELS, SERVER, setting
from cli.config.panels.joining import JoiningSettings, PlacementSettings
from cli.config.panels.limits import LimitSettings
from cli.config.panels.lora import LoraSettings
from gateway.settings import MetricsNames
from protocol.bounds import MAX_COUNT, MAX_NAME, MAX_QUEUE, MAX_SLOTS, MAX_TOKENS, MIN_KEEP
from protocol.scheduling import MAX_HEADROOM, SchedulerPolicy
from workers.checkpoints.gguf.find import MMPROJ_AUTO
from workers.plugins import OWN_BACKENDS
from workers.precision import CpuTarget, KvDtype, Quantize, WindowCache

ENV_PREFIX = "BATON_"
VLLM_FLAGS = ("lora_modules",)
"""Lists whose flag has the name that vLLM gives it."""


class Settings(PlacementSettings, JoiningSettings, LimitSettings, LoraSettings, BaseSettings):
    """The settings. `max_batch_size` is set by `--max-batch-size`, `BATON_MAX_BATCH_SIZE` or `max_batch_size = 8`."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True)
    _sources: dict[str, str] = PrivateAttr(default_factory=dict)

    model: str = setting(
        "", MODEL, "Model directory, GGUF file or Hugging Face model id; empty selects the built-in model.", "MODEL"
    )
    name: str = setting(
        "", MODEL, "Model name that clients use; empty uses the model's own name.", "NAME", max_length=MAX_NAME
    )
    backend: BackendName = setting(
        "auto",
        MODEL,
        "iree, mlx, that of a plug-in, or auto: mlx on Apple silicon, iree elsewhere. (scripted needs no model and is "
        "for tests.)",
        "|".join(OWN_BACKENDS),
        ALLOWED_BACKENDS,
    )
    device: str = setting(
        "", MODEL, "Device of the backend, such as local-task or cuda; empty uses the backend's default.", "DEVICE"
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = setting(
        "auto", MODEL, "Number type of weights and KV cache; auto uses the best one that the device supports."
    )
    quantize: Quantize = setting(
        "none",
        MODEL,
        "Quantize the weight matrices to int8 or int4 while loading: less memory, more tokens per second.",
    )
    kv_dtype: KvDtype = setting(
        "auto",
        MODEL,
        "Type of the KV cache: that of the model (auto), or int8 or int4, which hold two or three times the tokens.",
    )
    window_cache: WindowCache = setting(
        "full",
        MODEL,
        "What layers with an attention window keep of a sequence: all rows (full), or the last ones (ring), for longer "
        "contexts in the same memory.",
    )
    cpu: CpuTarget = setting(
        "host",
        MODEL,
        "Instructions that IREE uses on a CPU: all that it has (host), or those of another one, to measure and test "
        "them or to compile for it.",
    )
    context: int = setting(
        0,
        MODEL,
        "Maximum tokens of prompt and answer together; 0 uses the model's own limit where memory allows.",
        ge=0,
        le=MAX_TOKENS,
    )

    max_batch_size: int = setting(
        8, ENGINE, "Maximum number of sequences that run at once in one worker.", ge=1, le=MAX_SLOTS
    )
    max_queue: int = setting(256, ENGINE, "Maximum number of sequences that wait in one worker.", ge=0, le=MAX_QUEUE)
    scheduler_policy: SchedulerPolicy = setting(
        GATEWAY.scheduler_policy,
        ENGINE,
        "Order of the waiting requests of one API key. fifo: first in, first out. shortest-uncached-first: first those "
        "with the fewest prompt tokens to compute. priority: first those with the lowest `priority`. A request that "
        "waits for long is not overtaken.",
    )
    scheduler_headroom: float = setting(
        0.0,
        ENGINE,
        "Share of a worker's KV cache that a further sequence leaves free while others run, for the prefix cache.",
        ge=0,
        le=MAX_HEADROOM,
    )
    step_tokens: int = setting(
        0,
        ENGINE,
        "Token budget of one engine step; 0 sets it so that running streams keep their pace.",
        ge=0,
        le=MAX_TOKENS,
    )
    kv_bytes: int = setting(
        0,
        ENGINE,
        "Bytes of KV cache that a worker's sequences share; 0 uses the worker's share of the free memory, at most "
        "max_batch_size x context.",
        ge=0,
        le=MAX_COUNT,
    )
    speculate: Literal["auto", "off"] = setting(
        "auto",
        ENGINE,
        "Speculative decoding. auto: on CPUs, draft tokens that repeat the prompt or the answer, or that a grammar "
        "forces, where verifying them is worth it. Answers are the same.",
    )
    draft_model: str = setting(
        "",
        ENGINE,
        "Directory or Hugging Face id of a smaller model with the same tokenizer, which drafts tokens with --speculate "
        "auto on a CPU; empty for none.",
        "MODEL",
    )
    adapter: str = setting(
        "",
        ENGINE,
        "Directory of a LoRA adapter of mlx-lm, which is applied to the model on MLX; empty for none.",
        "DIR",
    )
    sparse_prefill: bool = setting(
        False,
        ENGINE,
        "Sparse prefill: let requests ask that only the part of a long prompt is computed that the draft model attends "
        "to most. Their answers are others than those of the whole prompt.",
    )
    sparse_prefill_tokens: int = setting(
        0,
        ENGINE,
        "With --sparse-prefill, prompts of so many tokens and more are computed so unless their request forbids it; 0 "
        "leaves it to requests.",
        ge=0,
        le=MAX_TOKENS,
    )
    sparse_prefill_keep: float = setting(
        0.3,
        ENGINE,
        "With --sparse-prefill, the part of a prompt that is computed, where a request does not say.",
        ge=MIN_KEEP,
        le=1,
    )
    prefix_cache: bool = setting(True, ENGINE, "Keep the KV of ended sequences for requests that share a prefix.")
    prefix_bytes: int = setting(
        0,
        ENGINE,
        "Maximum bytes of KV that the prefix cache keeps; 0 keeps the last sequence of every slot.",
        ge=0,
        le=MAX_COUNT,
    )
    prefix_cache_bytes: int = setting(
        1_000_000_000,
        ENGINE,
        "Maximum bytes of prefixes that are kept apart from the slots, for all workers of this machine; unless it is "
        "set, fewer or none where memory is short. 0 keeps none.",
        ge=0,
        le=MAX_COUNT,
    )
    prefix_cache_dir: str = setting(
        "",
        ENGINE,
        "Directory of the prefixes of --prefix-cache-bytes; they outlive the server there. Empty keeps them in memory.",
        "DIR",
    )
    state_cache_bytes: int = setting(
        1_000_000_000,
        ENGINE,
        "Maximum bytes of recurrent states, and of windows beside --window-cache ring, that a worker keeps for "
        "prefixes; unless it is set, fewer where memory is short. 0 keeps none.",
        ge=0,
        le=MAX_COUNT,
    )
    image_cache_bytes: int = setting(
        256_000_000,
        ENGINE,
        "Maximum bytes of what the vision tower has made of images that a worker keeps, for requests with the same "
        "image. 0 keeps nothing beyond a request's prompt.",
        ge=0,
        le=MAX_COUNT,
    )
    enable_prompt_embeds: bool = setting(
        False,
        ENGINE,
        "Take rows of embeddings in place of a prompt: the field prompt_embeds of completions.",
    )
    vision: bool = setting(
        True, ENGINE, "Load the vision tower of a model that has one, so that prompts may have images."
    )
    mmproj: str = setting(
        MMPROJ_AUTO,
        ENGINE,
        "Projector of images of a GGUF model: a GGUF file, or Hugging Face id of one. auto: the mmproj file beside the "
        "model. none: no images.",
        "FILE",
        min_length=1,
    )
    parse_special: bool = setting(
        False,
        ENGINE,
        "Parse control tokens in the text of chat messages. Otherwise they are ordinary text there.",
    )
    generation_config: Literal["auto", "none"] = setting(
        "auto",
        ENGINE,
        "auto: temperature, top_k, top_p, min_p and repetition_penalty that a request leaves open are those of the "
        "model's generation_config.json. none: the API's defaults.",
    )
    tool_parser: str = setting(
        "auto",
        ENGINE,
        "Notation of the model's tool calls; `auto` recognizes it by the chat template, and `none` leaves calls in the "
        "text. docs/tools.md lists the names.",
        "NAME",
        min_length=1,
    )
    reasoning_parser: str = setting(
        "auto",
        ENGINE,
        "Notation of the model's reasoning, with `auto` and `none` likewise.",
        "NAME",
        min_length=1,
    )
    threads: int = setting(
        0,
        ENGINE,
        "Compute threads of one IREE worker; 0 divides the cores among the workers, or uses one thread for a small "
        "model. MLX chooses its own number.",
        ge=0,
        le=4096,
    )
    threads_bind: str = setting(
        "auto",
        ENGINE,
        "CPUs of IREE's compute threads on Linux. auto: near to each other and to their memory, on machines with "
        "several NUMA nodes or last-level caches. nobind: any. Or lists such as 0-15, one for each worker, with a "
        "vertical bar between them: a thread for each core, pinned to it.",
        "auto|nobind|CPUS",
        min_length=1,
    )
    mmap: bool = setting(
        True,
        ENGINE,
        "Map packed weights from the cache directory, so that workers share them. Otherwise each IREE worker on a CPU "
        "copies them into huge pages of its own.",
    )
    cache_dir: str = setting(
        "",
        ENGINE,
        "Directory of IREE's compiled graphs and packed weights; empty uses the user's cache directory.",
        "DIR",
    )

    host: str = setting(GATEWAY.host, SERVER, "Address to listen on.", "HOST", min_length=1)
    port: int = setting(GATEWAY.port, SERVER, "Port to listen on; 0 chooses a free one.", "PORT", ge=0, le=65535)
    tcp: bool = setting(GATEWAY.tcp, SERVER, "Listen on the host and the port.")
    unix_socket: str = setting(
        GATEWAY.unix_socket,
        SERVER,
        "Unix socket to listen on, beside the port, or alone with --no-tcp; empty for none.",
        "FILE",
    )
    unix_socket_mode: str = setting(
        GATEWAY.unix_socket_mode, SERVER, "Mode of its file, which decides who may connect.", "MODE"
    )
    workers: int = setting(
        1,
        SERVER,
        "Number of worker processes, each with the whole model; 0 if workers on other machines suffice.",
        ge=0,
        le=64,
    )
    standby: int = setting(
        0, SERVER, "Number of additional workers that are loaded and ready to replace a lost one.", ge=0, le=64
    )
    prefill_workers: int = setting(
        0,
        SERVER,
        "Number of the --workers that compute long prompts for the others, whose streams are then not slowed down.",
        ge=0,
        le=63,
    )
    long_prompt_tokens: int = setting(
        GATEWAY.long_prompt_tokens,
        SERVER,
        "Prompt tokens to be computed from which a prefill worker gets a request; 0: as many as take half a second.",
        ge=0,
        le=MAX_TOKENS,
    )
    gateways: int = setting(
        GATEWAY.gateways,
        SERVER,
        "Number of processes that serve HTTP; beyond 1 the server's own process only routes, for thousands of streams.",
        ge=1,
        le=64,
    )
    models: Annotated[tuple[ModelSettings, ...], NoDecode] = setting(
        (),
        SERVER,
        "Model of a server with several, instead of MODEL; loaded by its first request. Repeatable. [[models]] in the "
        "file has its settings.",
        "NAME=MODEL",
        allowed=f"a list of at most {MAX_MODELS} models, each NAME=MODEL or a table",
        max_length=MAX_MODELS,
    )
    memory_budget: int = setting(
        0,
        SERVER,
        "Bytes of memory of all loaded models: weights and full KV caches; 0 is 90 % of the machine's, or none with "
        "one model.",
        "BYTES",
        ge=0,
        le=MAX_COUNT,
    )
    api_key: str = setting(
        GATEWAY.api_key, SERVER, "Key that clients must send as a bearer token; empty requires none.", "KEY"
    )
    api_keys_file: str = setting(
        GATEWAY.api_keys_file,
        SERVER,
        "File with the keys of clients, which baton keys makes; only its owner may read it.",
        "FILE",
    )
    admin_key: str = setting(
        GATEWAY.admin_key, SERVER, "Key that drain, restart and reload require instead of the API key.", "KEY"
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = setting(
        GATEWAY.allowed_hosts,
        SERVER,
        "Name under which clients reach the server, besides localhost and its addresses; *.NAME for all below, * for "
        "any. Repeatable.",
        "NAME",
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = setting(
        GATEWAY.cors_origins,
        SERVER,
        "Origin of a browser app that may use the API, such as https://app.example.org; * for any. Repeatable.",
        "ORIGIN",
    )
    allow_image_urls: Annotated[tuple[str, ...], NoDecode] = setting(
        GATEWAY.allow_image_urls,
        SERVER,
        "Host from which images are fetched that requests have by URL; *.NAME for all below, * for any public one. "
        "Repeatable; without it, none are fetched.",
        "HOST",
    )
    trusted_gateways: Annotated[tuple[str, ...], NoDecode] = setting(
        GATEWAY.trusted_gateways,
        SERVER,
        "Address or network of a gateway in front whose fairness ids and traces are trusted, such as 10.0.0.0/8, or "
        "unix for the Unix socket. Repeatable.",
        "NETWORK",
    )
    tls_cert: str = setting(
        GATEWAY.tls_cert, SERVER, "PEM file with the server's certificate chain; the port then speaks HTTPS.", "FILE"
    )
    tls_key: str = setting(GATEWAY.tls_key, SERVER, "PEM file with the certificate's private key.", "FILE")
    redis_url: str = setting(
        GATEWAY.redis_url,
        SERVER,
        "Redis through which several gateways share the limits of API keys, redis://HOST:PORT; empty shares nothing.",
        "URL",
    )
    listen_workers: str = setting(
        GATEWAY.listen_workers,
        SERVER,
        "Address where workers on other machines join, tcp://HOST:PORT; empty accepts none.",
        "ADDRESS",
    )
    keys_dir: str = setting(
        GATEWAY.keys_dir,
        SERVER,
        "Directory with the gateway's key and the keys of workers that may join; see baton worker-keys.",
        "DIR",
    )
    allow_public_workers: bool = setting(
        GATEWAY.allow_public_workers,
        SERVER,
        "Allow --listen-workers to be an address outside of loopback and private networks.",
    )
    store: str = setting(
        GATEWAY.store,
        SERVER,
        "Where responses of /v1/responses are stored: memory, sqlite:FILE, or none.",
        "STORE",
    )
    metrics_names: MetricsNames = setting(
        GATEWAY.metrics_names,
        SERVER,
        "Names of the series in /metrics: those of Baton, or those of vLLM beside them.",
    )
    otlp_traces_endpoint: str = setting(
        GATEWAY.otlp_traces_endpoint,
        SERVER,
        "URL that traces of requests are exported to by OTLP over HTTP, such as http://localhost:4318/v1/traces; empty "
        "exports none.",
        "URL",
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", SERVER, "Log level: debug, info, warning or error. On a terminal the default is warning."
    )

    @property
    def sources(self) -> dict[str, str]:
        """The flag, variable or line of a file that set each setting, without those at their defaults."""
        return self._sources

    def from_sources(self, sources: dict[str, str]) -> "Settings":
        """Remember what set the settings. Returns them."""
        self._sources = sources
        return self

    @field_validator(
        "allowed_hosts",
        "allow_image_urls",
        "cors_origins",
        "trusted_gateways",
        "key_weights",
        "join",
        "server_key",
        "lora_modules",
        "lora_dirs",
        "allow_lora_repos",
        mode="before",
    )
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Take a list as a variable or a line has it: entries are separated by commas."""
        return [each.strip() for each in value.split(",") if each.strip()] if isinstance(value, str) else value

    @field_validator("models", mode="before")
    @classmethod
    def _parse_models(cls, value: Any) -> Any:
        """Take `NAME=MODEL` for a table. In a variable, entries are separated by commas."""
        given = cls._split(value)
        if not isinstance(given, list):
            return given
        return [from_text(each) if isinstance(each, str) else each for each in given]

    @field_validator("*", mode="before")
    @classmethod
    def _check_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false as numbers."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation in (int, float):
            raise ValueError("a number is needed")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: flags, environment, file. Dotenv files and secrets directories are not read."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def of_panels(*panels: str) -> tuple[str, ...]:
    """Return the names of the settings under these headings, in the order of `PANELS`."""
    found: dict[str, list[str]] = {panel: [] for panel in PANELS}
    for name, field in Settings.model_fields.items():
        if isinstance(field.json_schema_extra, dict):
            found[str(field.json_schema_extra["panel"])].append(name)
    return tuple(name for panel in PANELS if panel in panels for name in found[panel])


def flag(name: str) -> str:
    """Return the flag of a setting. Each use of the flag of a list adds one entry, so its name is in the singular,
    unless vLLM has it in the plural."""
    field = Settings.model_fields.get(name)
    if field is not None and isinstance(field.default, tuple) and name not in VLLM_FLAGS:
        name = name.removesuffix("s")
    return "--" + name.replace("_", "-")
