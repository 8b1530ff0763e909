"""All settings, each with its default, its range and the description that the help shows."""

from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from cli.config.model_settings import MAX_MODELS, ModelSettings, from_text
from gateway.settings import GatewaySettings, MetricsNames, Routing
from protocol.bounds import MAX_COUNT, MAX_FRAMES_PER_MESSAGE, MAX_NAME, MAX_QUEUE, MAX_SLOTS, MAX_TOKENS
from protocol.events import Phases
from protocol.scheduling import MAX_HEADROOM, SchedulerPolicy
from workers.precision import CpuTarget, KvDtype, Quantize

ENV_PREFIX = "BATON_"

_GATEWAY = GatewaySettings()
"""The defaults of the gateway's settings."""

MODEL, ENGINE, SERVER, LIMITS, JOINING = "Model", "Engine", "Server", "Limits", "Joining"
SCALING = "Placement"


def _field(default: Any, panel: str, help: str, metavar: str = "", allowed: str = "", **bounds: Any) -> Any:
    extra: dict[str, Any] = {"panel": panel, "metavar": metavar, "allowed": allowed}
    return Field(default, description=help, json_schema_extra=extra, **bounds)


class Settings(BaseSettings):
    """The settings. `max_batch_size` is set by `--max-batch-size`, `BATON_MAX_BATCH_SIZE` or `max_batch_size = 8`."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True)
    _sources: dict[str, str] = PrivateAttr(default_factory=dict)

    model: str = _field(
        "", MODEL, "Model directory or Hugging Face model id; empty selects the built-in model.", "MODEL"
    )
    name: str = _field(
        "", MODEL, "Model name that clients use; empty uses the model's own name.", "NAME", max_length=MAX_NAME
    )
    backend: Literal["auto", "iree", "mlx", "scripted"] = _field(
        "auto",
        MODEL,
        "iree, mlx, or auto: mlx on Apple silicon, iree elsewhere. (scripted needs no model and is for tests.)",
    )
    device: str = _field(
        "", MODEL, "Device of the backend, such as local-task or cuda; empty uses the backend's default.", "DEVICE"
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = _field(
        "auto", MODEL, "Number type of weights and KV cache; auto uses the best one that the device supports."
    )
    quantize: Quantize = _field(
        "none",
        MODEL,
        "Quantize the weight matrices to int8 or int4 while loading: less memory, more tokens per second.",
    )
    kv_dtype: KvDtype = _field(
        "auto",
        MODEL,
        "Type of the KV cache: that of the model (auto), or int8 or int4, which hold two or three times the tokens.",
    )
    cpu: CpuTarget = _field(
        "host",
        MODEL,
        "Instructions that IREE uses on a CPU: all that it has (host), or those of another one, to measure and test "
        "them or to compile for it.",
    )
    context: int = _field(
        0,
        MODEL,
        "Maximum tokens of prompt and answer together; 0 uses the model's own limit where memory allows.",
        ge=0,
        le=MAX_TOKENS,
    )

    max_batch_size: int = _field(
        8, ENGINE, "Maximum number of sequences that run at once in one worker.", ge=1, le=MAX_SLOTS
    )
    max_queue: int = _field(256, ENGINE, "Maximum number of sequences that wait in one worker.", ge=0, le=MAX_QUEUE)
    scheduler_policy: SchedulerPolicy = _field(
        _GATEWAY.scheduler_policy,
        ENGINE,
        "Order of the waiting requests of one API key. fifo: first in, first out. shortest-uncached-first: first those "
        "with the fewest prompt tokens to compute. priority: first those with the lowest `priority`. A request that "
        "waits for long is not overtaken.",
    )
    scheduler_headroom: float = _field(
        0.0,
        ENGINE,
        "Share of a worker's KV cache that a further sequence leaves free while others run, for the prefix cache.",
        ge=0,
        le=MAX_HEADROOM,
    )
    step_tokens: int = _field(
        0,
        ENGINE,
        "Token budget of one engine step; 0 sets it so that running streams keep their pace.",
        ge=0,
        le=MAX_TOKENS,
    )
    kv_bytes: int = _field(
        0,
        ENGINE,
        "Bytes of KV cache that a worker's sequences share; 0 uses the worker's share of the free memory, at most "
        "max_batch_size x context.",
        ge=0,
        le=MAX_COUNT,
    )
    speculate: Literal["auto", "off"] = _field(
        "auto",
        ENGINE,
        "Speculative decoding. auto: on CPUs, draft tokens that repeat the prompt or the answer, or that a grammar "
        "forces, where verifying them is worth it. Answers are the same.",
    )
    draft_model: str = _field(
        "",
        ENGINE,
        "Directory or Hugging Face id of a smaller model with the same tokenizer, which drafts tokens with --speculate "
        "auto on a CPU; empty for none.",
        "MODEL",
    )
    prefix_cache: bool = _field(True, ENGINE, "Keep the KV of ended sequences for requests that share a prefix.")
    prefix_bytes: int = _field(
        0,
        ENGINE,
        "Maximum bytes of KV that the prefix cache keeps; 0 keeps the last sequence of every slot.",
        ge=0,
        le=MAX_COUNT,
    )
    prefix_cache_bytes: int = _field(
        1_000_000_000,
        ENGINE,
        "Maximum bytes of prefixes that are kept apart from the slots, for all workers of this machine; unless it is "
        "set, fewer or none where memory is short. 0 keeps none.",
        ge=0,
        le=MAX_COUNT,
    )
    prefix_cache_dir: str = _field(
        "",
        ENGINE,
        "Directory of the prefixes of --prefix-cache-bytes; they outlive the server there. Empty keeps them in memory.",
        "DIR",
    )
    enable_prompt_embeds: bool = _field(
        False,
        ENGINE,
        "Take rows of embeddings in place of a prompt: the field prompt_embeds of completions.",
    )
    parse_special: bool = _field(
        False,
        ENGINE,
        "Parse control tokens in the text of chat messages. Otherwise they are ordinary text there.",
    )
    generation_config: Literal["auto", "none"] = _field(
        "auto",
        ENGINE,
        "auto: temperature, top_k, top_p, min_p and repetition_penalty that a request leaves open are those of the "
        "model's generation_config.json. none: the API's defaults.",
    )
    tool_parser: str = _field(
        "auto",
        ENGINE,
        "Notation of the model's tool calls; `auto` recognizes it by the chat template, and `none` leaves calls in the "
        "text. docs/tools.md lists the names.",
        "NAME",
        min_length=1,
    )
    reasoning_parser: str = _field(
        "auto",
        ENGINE,
        "Notation of the model's reasoning, with `auto` and `none` likewise.",
        "NAME",
        min_length=1,
    )
    threads: int = _field(
        0,
        ENGINE,
        "Compute threads of one IREE worker; 0 divides the cores among the workers, or uses one thread for a small "
        "model. MLX chooses its own number.",
        ge=0,
        le=4096,
    )
    threads_bind: str = _field(
        "auto",
        ENGINE,
        "CPUs of IREE's compute threads on Linux. auto: near to each other and to their memory, on machines with "
        "several NUMA nodes or last-level caches. nobind: any. Or lists such as 0-15, one for each worker, with a "
        "vertical bar between them: a thread for each core, pinned to it.",
        "auto|nobind|CPUS",
        min_length=1,
    )
    mmap: bool = _field(
        True,
        ENGINE,
        "Map packed weights from the cache directory, so that workers share them. Otherwise each IREE worker on a CPU "
        "copies them into huge pages of its own.",
    )
    cache_dir: str = _field(
        "",
        ENGINE,
        "Directory of IREE's compiled graphs and packed weights; empty uses the user's cache directory.",
        "DIR",
    )

    host: str = _field(_GATEWAY.host, SERVER, "Address to listen on.", "HOST", min_length=1)
    port: int = _field(_GATEWAY.port, SERVER, "Port to listen on; 0 chooses a free one.", "PORT", ge=0, le=65535)
    tcp: bool = _field(_GATEWAY.tcp, SERVER, "Listen on the host and the port.")
    unix_socket: str = _field(
        _GATEWAY.unix_socket,
        SERVER,
        "Unix socket to listen on, beside the port, or alone with --no-tcp; empty for none.",
        "FILE",
    )
    unix_socket_mode: str = _field(
        _GATEWAY.unix_socket_mode, SERVER, "Mode of its file, which decides who may connect.", "MODE"
    )
    workers: int = _field(
        1,
        SERVER,
        "Number of worker processes, each with the whole model; 0 if workers on other machines suffice.",
        ge=0,
        le=64,
    )
    standby: int = _field(
        0, SERVER, "Number of additional workers that are loaded and ready to replace a lost one.", ge=0, le=64
    )
    prefill_workers: int = _field(
        0,
        SERVER,
        "Number of the --workers that compute long prompts for the others, whose streams are then not slowed down; see "
        "--role.",
        ge=0,
        le=63,
    )
    long_prompt_tokens: int = _field(
        _GATEWAY.long_prompt_tokens,
        SERVER,
        "Prompt tokens to be computed from which a prefill worker gets a request; 0: as many as take half a second.",
        ge=0,
        le=MAX_TOKENS,
    )
    gateways: int = _field(
        _GATEWAY.gateways,
        SERVER,
        "Number of processes that serve HTTP; beyond 1 the server's own process only routes, for thousands of streams.",
        ge=1,
        le=64,
    )
    models: Annotated[tuple[ModelSettings, ...], NoDecode] = _field(
        (),
        SERVER,
        "Model of a server with several, instead of MODEL; loaded by its first request. Repeatable. [[models]] in the "
        "file has its settings.",
        "NAME=MODEL",
        allowed=f"a list of at most {MAX_MODELS} models, each NAME=MODEL or a table",
        max_length=MAX_MODELS,
    )
    memory_budget: int = _field(
        0,
        SERVER,
        "Bytes of memory of all loaded models: weights and full KV caches; 0 is 90 % of the machine's, or none with "
        "one model.",
        "BYTES",
        ge=0,
        le=MAX_COUNT,
    )
    api_key: str = _field(
        _GATEWAY.api_key, SERVER, "Key that clients must send as a bearer token; empty requires none.", "KEY"
    )
    api_keys_file: str = _field(
        _GATEWAY.api_keys_file,
        SERVER,
        "File with the keys of clients, which baton keys makes; only its owner may read it.",
        "FILE",
    )
    admin_key: str = _field(
        _GATEWAY.admin_key, SERVER, "Key that drain, restart and reload require instead of the API key.", "KEY"
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = _field(
        _GATEWAY.allowed_hosts,
        SERVER,
        "Name under which clients reach the server, besides localhost and its addresses; *.NAME for all below, * for "
        "any. Repeatable.",
        "NAME",
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = _field(
        _GATEWAY.cors_origins,
        SERVER,
        "Origin of a browser app that may use the API, such as https://app.example.org; * for any. Repeatable.",
        "ORIGIN",
    )
    trusted_gateways: Annotated[tuple[str, ...], NoDecode] = _field(
        _GATEWAY.trusted_gateways,
        SERVER,
        "Address or network of a gateway in front whose fairness ids and traces are trusted, such as 10.0.0.0/8, or "
        "unix for the Unix socket. Repeatable.",
        "NETWORK",
    )
    tls_cert: str = _field(
        _GATEWAY.tls_cert, SERVER, "PEM file with the server's certificate chain; the port then speaks HTTPS.", "FILE"
    )
    tls_key: str = _field(_GATEWAY.tls_key, SERVER, "PEM file with the certificate's private key.", "FILE")
    redis_url: str = _field(
        _GATEWAY.redis_url,
        SERVER,
        "Redis through which several gateways share the limits of API keys, redis://HOST:PORT; empty shares nothing.",
        "URL",
    )
    listen_workers: str = _field(
        _GATEWAY.listen_workers,
        SERVER,
        "Address where workers on other machines join, tcp://HOST:PORT; empty accepts none.",
        "ADDRESS",
    )
    keys_dir: str = _field(
        _GATEWAY.keys_dir,
        SERVER,
        "Directory with the gateway's key and the keys of workers that may join; see baton worker-keys.",
        "DIR",
    )
    allow_public_workers: bool = _field(
        _GATEWAY.allow_public_workers,
        SERVER,
        "Allow --listen-workers to be an address outside of loopback and private networks.",
    )
    store: str = _field(
        _GATEWAY.store,
        SERVER,
        "Where responses of /v1/responses are stored: memory, sqlite:FILE, or none.",
        "STORE",
    )
    metrics_names: MetricsNames = _field(
        _GATEWAY.metrics_names,
        SERVER,
        "Names of the series in /metrics: those of Baton, or those of vLLM beside them.",
    )
    otlp_traces_endpoint: str = _field(
        _GATEWAY.otlp_traces_endpoint,
        SERVER,
        "URL that traces of requests are exported to by OTLP over HTTP, such as http://localhost:4318/v1/traces; empty "
        "exports none.",
        "URL",
    )
    log_level: Literal["debug", "info", "warning", "error"] = _field(
        "info", SERVER, "Log level: debug, info, warning or error. On a terminal the default is warning."
    )

    max_body_bytes: int = _field(
        _GATEWAY.max_body_bytes, LIMITS, "Maximum bytes of one request body.", ge=1, le=12 << 20
    )
    max_total_body_bytes: int = _field(
        _GATEWAY.max_total_body_bytes,
        LIMITS,
        "Maximum bytes of the bodies of all live requests, each counted n times; more requests are answered 429.",
        ge=1,
        le=1 << 50,
    )
    max_body_values: int = _field(
        _GATEWAY.max_body_values,
        LIMITS,
        "Maximum JSON values in one request body; an array, an object and each of its members counts as four.",
        ge=1024,
        le=1 << 24,
    )
    max_answer_bytes: int = _field(
        _GATEWAY.max_answer_bytes,
        LIMITS,
        "Maximum bytes of memory of one answer; of a streamed one, of what its client has not read yet.",
        ge=1 << 20,
        le=1 << 29,
    )
    max_total_answer_bytes: int = _field(
        _GATEWAY.max_total_answer_bytes,
        LIMITS,
        "Maximum bytes of memory of all answers; beyond it the largest is ended with 429.",
        ge=1 << 20,
        le=1 << 50,
    )
    max_header_bytes: int = _field(
        _GATEWAY.max_header_bytes, LIMITS, "Maximum bytes of one request's headers.", ge=1024, le=1 << 20
    )
    max_choices: int = _field(
        _GATEWAY.max_choices,
        LIMITS,
        "Maximum number of sequences of one request: its prompts times n.",
        ge=1,
        le=MAX_FRAMES_PER_MESSAGE,
    )
    max_streams_per_worker: int = _field(
        _GATEWAY.max_streams_per_worker,
        LIMITS,
        "Maximum number of sequences of one worker, running and waiting; more requests are answered 429.",
        ge=1,
        le=1 << 20,
    )
    max_connections: int = _field(
        _GATEWAY.max_connections,
        LIMITS,
        "Maximum number of open HTTP connections; more are answered 503.",
        ge=1,
        le=1 << 20,
    )
    body_timeout_s: float = _field(
        _GATEWAY.body_timeout_s, LIMITS, "Seconds in which a client must have sent its request body.", ge=0.01, le=3600
    )
    request_timeout_s: float = _field(
        _GATEWAY.request_timeout_s, LIMITS, "Seconds that a request may take in total.", ge=0.01, le=604800
    )
    max_waiting_streams: int = _field(
        _GATEWAY.max_waiting_streams,
        LIMITS,
        "Maximum number of sequences that wait for a worker with room; more requests are answered 429, or displace "
        "those of a key with more than its share.",
        ge=0,
        le=1 << 20,
    )
    max_queue_s: float = _field(
        _GATEWAY.max_queue_s,
        LIMITS,
        "Seconds that a new request may wait for its first turn; then it is answered 503. 0: as long as it may take "
        "in total.",
        ge=0,
        le=86400,
    )
    routing: Routing = _field(
        _GATEWAY.routing,
        LIMITS,
        "How a worker is chosen among those with a free slot. prefix: the one that is expected to be done first, given "
        "what its prefix cache holds of the prompt. least-loaded: the one with the fewest sequences. round-robin: each "
        "in turn.",
    )
    key_weights: Annotated[tuple[str, ...], NoDecode] = _field(
        _GATEWAY.key_weights,
        LIMITS,
        "Weight of an API key, NAME=WEIGHT: its share of an overloaded server. Others have 1. Repeatable.",
        "NAME=WEIGHT",
    )
    worker_wait_s: float = _field(
        _GATEWAY.worker_wait_s,
        LIMITS,
        "Seconds that a request waits for a worker to become available; 0 ends or refuses it at once.",
        ge=0,
        le=86400,
    )
    waiting_comment_s: float = _field(
        _GATEWAY.waiting_comment_s,
        LIMITS,
        "Seconds between the comments that a streaming client gets while it waits for a worker.",
        ge=0.01,
        le=3600,
    )
    client_stall_s: float = _field(
        _GATEWAY.client_stall_s,
        LIMITS,
        "Seconds after which a client that reads nothing is disconnected; it may take twice as long.",
        ge=0.01,
        le=86400,
    )
    max_resume_s: float = _field(
        _GATEWAY.max_resume_s,
        LIMITS,
        "Maximum seconds that a stream is kept for a client whose connection ended; 0 keeps none.",
        ge=0,
        le=86400,
    )
    max_resumable_streams: int = _field(
        _GATEWAY.max_resumable_streams,
        LIMITS,
        "Maximum number of streams that can be resumed; the oldest one that is not being read gives way.",
        ge=0,
        le=1 << 16,
    )
    max_resumable_streams_per_key: int = _field(
        _GATEWAY.max_resumable_streams_per_key,
        LIMITS,
        "Maximum number of these streams of one API key; without keys it has no effect.",
        ge=1,
        le=1 << 16,
    )
    resume_buffer_bytes: int = _field(
        _GATEWAY.resume_buffer_bytes,
        LIMITS,
        "Bytes of sent events kept for each of these streams; the oldest are dropped first.",
        ge=0,
        le=1 << 30,
    )
    max_stored_responses: int = _field(
        _GATEWAY.max_stored_responses,
        LIMITS,
        "Maximum number of stored responses; of the key with the most bytes, the least recently used is dropped.",
        ge=1,
        le=1 << 20,
    )
    max_stored_bytes: int = _field(
        _GATEWAY.max_stored_bytes, LIMITS, "Maximum bytes of all stored responses.", ge=1 << 16, le=1 << 40
    )
    max_background_responses: int = _field(
        _GATEWAY.max_background_responses,
        LIMITS,
        "Maximum number of responses that are generated in the background; more are answered 429; 0 allows none.",
        ge=0,
        le=1 << 12,
    )
    progress_timeout_s: float = _field(
        _GATEWAY.progress_timeout_s,
        LIMITS,
        "Seconds without progress after which a worker does not count as ready.",
        ge=0.01,
        le=86400,
    )
    hang_timeout_s: float = _field(
        _GATEWAY.hang_timeout_s,
        LIMITS,
        "Seconds without a finished step after which a busy worker is replaced; longer if its steps are slow.",
        ge=0.01,
        le=900,
    )
    shutdown_grace_s: float = _field(
        _GATEWAY.shutdown_grace_s, LIMITS, "Seconds that live requests may take to finish at shutdown.", ge=0, le=86400
    )

    join: Annotated[tuple[str, ...], NoDecode] = _field(
        (), JOINING, "Address of a gateway for workers, tcp://HOST:PORT. Repeatable, to serve several.", "ADDRESS"
    )
    server_key: Annotated[tuple[str, ...], NoDecode] = _field(
        (),
        JOINING,
        "The gateway's public key, which baton worker-keys show prints there. Repeatable: one for all gateways, or one "
        "for each, in the order of --join.",
        "KEY",
    )
    key_file: str = _field("", JOINING, "File with this worker's secret key, made by baton worker-keys make.", "FILE")
    join_token: str = _field(
        "",
        JOINING,
        "One-time token from baton worker-keys token, instead of a key that the gateway knows. Better a variable than "
        "a flag, which other users of the machine see.",
        "TOKEN",
    )
    join_timeout_s: float = _field(
        0.0, JOINING, "Seconds without a gateway after which the worker ends; 0: it tries on.", ge=0, le=86400
    )
    role: Phases = _field(
        "both",
        JOINING,
        "What the gateway gives it: prefill for long prompts, whose streams then move to the others; decode for "
        "other requests and such streams; or both.",
    )
    health_file: str = _field(
        "", JOINING, "File that is written every second while the worker is joined and ready; for probes.", "FILE"
    )

    ray: str = _field(
        "",
        SCALING,
        "Address of the Ray cluster: auto or HOST:PORT on one of its nodes, ray://HOST:10001 from elsewhere.",
        "ADDRESS",
    )
    replicas: int = _field(
        1, SCALING, "Number of workers on the cluster; the least number with --max-replicas.", ge=0, le=256
    )
    max_replicas: int = _field(
        0, SCALING, "Maximum number of workers, up to which it follows the queue; 0 keeps it fixed.", ge=0, le=256
    )
    target_queue: float = _field(
        4.0, SCALING, "Waiting sequences for each worker above which there are more workers.", ge=0, le=1 << 20
    )
    scale_down_s: float = _field(
        300.0,
        SCALING,
        "Seconds for which the load must fit into fewer workers, before there is one less.",
        ge=0,
        le=86400,
    )
    resources: str = _field(
        '{"CPU": 1}',
        SCALING,
        "What a worker needs of its machine, as Ray counts it: a JSON object of CPU, GPU, memory (bytes) and the "
        "cluster's own resources.",
        "JSON",
    )
    scale_name: str = _field(
        "ray", SCALING, "Beginning of the workers' names, which tells the workers of several models apart.", "NAME"
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
        "allowed_hosts", "cors_origins", "trusted_gateways", "key_weights", "join", "server_key", mode="before"
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
    """Return the names of the settings under these headings."""
    return tuple(
        name
        for name, field in Settings.model_fields.items()
        if isinstance(field.json_schema_extra, dict) and field.json_schema_extra["panel"] in panels
    )


def flag(name: str) -> str:
    """Return the flag of a setting. Each use of the flag of a list adds one entry, so its name is in the singular."""
    field = Settings.model_fields.get(name)
    if field is not None and isinstance(field.default, tuple):
        name = name.removesuffix("s")
    return "--" + name.replace("_", "-")
