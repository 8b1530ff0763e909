"""The settings of a server: its addresses, its workers, and who may use it."""

from typing import Annotated, Literal

from pydantic import BaseModel
from pydantic_settings import NoDecode

from cli.config.model_settings import MAX_MODELS, ModelSettings
from cli.config.panels.field import GATEWAY, SERVER, setting
from gateway.settings import MetricsNames
from protocol.bounds import MAX_COUNT, MAX_TOKENS


class ServerSettings(BaseModel):
    """Addresses of a server, the number of its processes, its models, and the keys and hosts of clients."""

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
