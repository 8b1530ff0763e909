"""Every setting of Baton, defined once: flags win over BATON_* variables, which win over a TOML file."""

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from gateway.settings import GatewaySettings
from protocol.bounds import MAX_COUNT, MAX_FRAMES_PER_MESSAGE, MAX_NAME, MAX_QUEUE, MAX_SLOTS, MAX_TOKENS
from workers.process.spec import Quantize

ENV_PREFIX = "BATON_"
DEFAULT_FILE = Path("baton.toml")
CONFIG_VARIABLE = f"{ENV_PREFIX}CONFIG"

_GATEWAY = GatewaySettings()
"""Its defaults are these."""

MODEL, ENGINE, SERVER, LIMITS, JOINING = "Model", "Engine", "Server", "Limits", "Joining"


class SettingsError(Exception):
    """Raised when a setting is unknown or out of range; the text names the flag, the variable or the line's file."""


def _field(default: Any, panel: str, help: str, **bounds: Any) -> Any:
    return Field(default, description=help, json_schema_extra={"panel": panel}, **bounds)


class Settings(BaseSettings):
    """What can be set. `max_batch_size` is `--max-batch-size`, `BATON_MAX_BATCH_SIZE` and `max_batch_size = 8`."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True)

    model: str = _field("", MODEL, "A model directory or a Hugging Face id; empty is the built-in model.")
    name: str = _field("", MODEL, "What clients call the model; empty is its own name.", max_length=MAX_NAME)
    backend: Literal["auto", "iree", "mlx", "scripted"] = _field(
        "auto", MODEL, "iree, mlx, or auto: mlx on Apple silicon, iree elsewhere. (scripted needs no model: for tests.)"
    )
    device: str = _field("", MODEL, "The backend's device, such as local-task or cuda; empty is its default.")
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = _field(
        "auto", MODEL, "Number type of weights and KV; auto is the best the device runs."
    )
    quantize: Quantize = _field(
        "none", MODEL, "Make the matrices int8 or int4 while loading: less memory, and more tokens a second."
    )
    context: int = _field(
        0, MODEL, "Tokens of prompt and answer together; 0 is the model's own, up to 4096.", ge=0, le=MAX_TOKENS
    )

    max_batch_size: int = _field(8, ENGINE, "Sequences that run at once in one worker.", ge=1, le=MAX_SLOTS)
    max_queue: int = _field(256, ENGINE, "Sequences that may wait in one worker.", ge=0, le=MAX_QUEUE)
    step_tokens: int = _field(
        0, ENGINE, "Token budget of one engine step; 0 keeps running streams at their pace.", ge=0, le=MAX_TOKENS
    )
    kv_bytes: int = _field(
        0,
        ENGINE,
        "Bytes of KV cache that a worker's sequences share; 0 is its part of the free memory, at most max_batch_size x "
        "context.",
        ge=0,
        le=MAX_COUNT,
    )
    prefix_cache: bool = _field(True, ENGINE, "Keep KV of ended sequences for those that begin alike.")
    prefix_bytes: int = _field(
        0,
        ENGINE,
        "Bytes of KV kept so at most; 0 keeps the last sequence of every slot.",
        ge=0,
        le=MAX_COUNT,
    )
    threads: int = _field(
        0,
        ENGINE,
        "IREE's compute threads in one worker; 0 shares the cores, or is one for a small model. MLX chooses its own.",
        ge=0,
        le=4096,
    )
    cache_dir: str = _field(
        "", ENGINE, "Where IREE's compiled graphs and packed weights are kept; empty is the user's cache folder."
    )

    host: str = _field(_GATEWAY.host, SERVER, "Address to listen on.", min_length=1)
    port: int = _field(_GATEWAY.port, SERVER, "Port to listen on; 0 takes a free one.", ge=0, le=65535)
    workers: int = _field(
        1, SERVER, "Worker processes, each with the whole model; 0 where those of other machines suffice.", ge=0, le=64
    )
    standby: int = _field(
        0, SERVER, "More workers, loaded and kept ready to take the place of one that is lost.", ge=0, le=64
    )
    api_key: str = _field(_GATEWAY.api_key, SERVER, "When set, clients must send it as a bearer token.")
    admin_key: str = _field(
        _GATEWAY.admin_key, SERVER, "When set, drains, restarts and reloads want this key instead of the API key."
    )
    listen_workers: str = _field(
        _GATEWAY.listen_workers, SERVER, "Let workers of other machines join at this address, tcp://HOST:PORT."
    )
    keys_dir: str = _field(
        _GATEWAY.keys_dir, SERVER, "The folder of the gateway's key and of those that may join: see baton keys."
    )
    allow_public_workers: bool = _field(
        _GATEWAY.allow_public_workers, SERVER, "Let --listen-workers be an address that strangers can reach."
    )
    log_level: Literal["debug", "info", "warning", "error"] = _field(
        "info", SERVER, "What is logged: debug, info, warning or error. On a terminal it is warning unless set."
    )

    max_body_bytes: int = _field(_GATEWAY.max_body_bytes, LIMITS, "Bytes of one request body.", ge=1, le=12 << 20)
    max_total_body_bytes: int = _field(
        _GATEWAY.max_total_body_bytes,
        LIMITS,
        "Bytes of the bodies of all requests under way (n times), before clients are sent away.",
        ge=1,
        le=1 << 50,
    )
    max_header_bytes: int = _field(
        _GATEWAY.max_header_bytes, LIMITS, "Bytes of one request's headers.", ge=1024, le=1 << 20
    )
    max_choices: int = _field(
        _GATEWAY.max_choices, LIMITS, "Sequences of one request: its prompts times n.", ge=1, le=MAX_FRAMES_PER_MESSAGE
    )
    max_streams_per_worker: int = _field(
        _GATEWAY.max_streams_per_worker,
        LIMITS,
        "Sequences of one worker, running and waiting, before clients are sent away.",
        ge=1,
        le=1 << 20,
    )
    max_connections: int = _field(
        _GATEWAY.max_connections,
        LIMITS,
        "HTTP connections that may be open, before further ones are turned away.",
        ge=1,
        le=1 << 20,
    )
    body_timeout_s: float = _field(
        _GATEWAY.body_timeout_s, LIMITS, "Seconds in which a client must have sent its body.", ge=0.01, le=3600
    )
    request_timeout_s: float = _field(
        _GATEWAY.request_timeout_s, LIMITS, "Seconds that a request may take in all.", ge=0.01, le=604800
    )
    max_waiting_streams: int = _field(
        _GATEWAY.max_waiting_streams,
        LIMITS,
        "Sequences that may wait while there is no worker, before clients are sent away.",
        ge=0,
        le=1 << 20,
    )
    worker_wait_s: float = _field(
        _GATEWAY.worker_wait_s,
        LIMITS,
        "Seconds that a request waits for a worker to come back; 0 ends or refuses it at once.",
        ge=0,
        le=86400,
    )
    waiting_comment_s: float = _field(
        _GATEWAY.waiting_comment_s,
        LIMITS,
        "Seconds between the comments to a streaming client that waits so.",
        ge=0.01,
        le=3600,
    )
    client_stall_s: float = _field(
        _GATEWAY.client_stall_s,
        LIMITS,
        "Seconds after which a client that reads nothing is dropped, twice as many at the latest.",
        ge=0.01,
        le=86400,
    )
    max_resume_s: float = _field(
        _GATEWAY.max_resume_s,
        LIMITS,
        "Seconds that a stream may be kept for a client whose connection ended; 0 keeps none.",
        ge=0,
        le=86400,
    )
    max_resumable_streams: int = _field(
        _GATEWAY.max_resumable_streams,
        LIMITS,
        "Streams that can be resumed, before clients that ask for one more are sent away.",
        ge=0,
        le=1 << 16,
    )
    resume_buffer_bytes: int = _field(
        _GATEWAY.resume_buffer_bytes,
        LIMITS,
        "Bytes of sent events that one such stream keeps; the oldest go first.",
        ge=0,
        le=1 << 30,
    )
    progress_timeout_s: float = _field(
        _GATEWAY.progress_timeout_s,
        LIMITS,
        "Seconds without progress after which a worker is not ready.",
        ge=0.01,
        le=86400,
    )
    hang_timeout_s: float = _field(
        _GATEWAY.hang_timeout_s,
        LIMITS,
        "Seconds without a finished step after which a busy worker is replaced; more if its steps are slow.",
        ge=0.01,
        le=900,
    )
    shutdown_grace_s: float = _field(
        _GATEWAY.shutdown_grace_s, LIMITS, "Seconds that live requests get to finish at shutdown.", ge=0, le=86400
    )

    join: str = _field("", JOINING, "The gateway's address for workers, tcp://HOST:PORT.")
    server_key: str = _field("", JOINING, "The gateway's public key, as baton keys show prints it there.")
    key_file: str = _field("", JOINING, "This worker's secret key, made by baton keys make.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then the environment, then the file; no dotenv and no secrets folder."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def load(flags: Mapping[str, Any], config: Path | None = None) -> Settings:
    """Settings from flags (those that are not None), the environment and a TOML file. Raises `SettingsError`."""
    given = {name: value for name, value in flags.items() if value is not None}
    file = config_file(config)

    class Loaded(Settings):
        model_config = SettingsConfigDict(toml_file=file)

    try:
        return Loaded(**given)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{file} is not TOML: {error}") from error
    except ValidationError as error:
        raise SettingsError("\n".join(_explain(error, given, file))) from error


def config_file(config: Path | None) -> Path | None:
    """The file to read: `--config`, `BATON_CONFIG`, or baton.toml in the current folder when there is one."""
    variable = os.environ.get(CONFIG_VARIABLE)
    named = config or (Path(variable) if variable else None)
    if named is None:
        return DEFAULT_FILE if DEFAULT_FILE.is_file() else None
    if not named.is_file():
        raise SettingsError(f"{'--config' if config else CONFIG_VARIABLE}: there is no file {named}")
    return named


def unknown_variables(environment: Mapping[str, str] = os.environ) -> list[str]:
    """A sentence for each BATON_* variable that is no setting. Not an error: orchestrators set such names unasked."""
    known = [ENV_PREFIX + name.upper() for name in Settings.model_fields] + [CONFIG_VARIABLE]
    return [
        f"{name} is not a setting{_did_you_mean(name, known, ENV_PREFIX)}; it is ignored"
        for name in sorted(environment)
        if name.startswith(ENV_PREFIX) and name not in known
    ]


def of_panels(*panels: str) -> tuple[str, ...]:
    """The names of the settings that are shown under these headings."""
    return tuple(
        name
        for name, field in Settings.model_fields.items()
        if isinstance(field.json_schema_extra, dict) and field.json_schema_extra["panel"] in panels
    )


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _explain(error: ValidationError, given: Mapping[str, Any], file: Path | None) -> Iterable[str]:
    for problem in error.errors():
        name = str(problem["loc"][0])
        if problem["type"] == "extra_forbidden":
            yield f"{file}: {name} is not a setting{_did_you_mean(name, Settings.model_fields)}"
            continue
        variable = ENV_PREFIX + name.upper()
        if name in given:
            where = flag(name)
        elif variable in {key.upper() for key in os.environ}:
            where = variable
        else:
            where = f"{file}: {name}"
        yield f"{where}: {problem['msg'][0].lower()}{problem['msg'][1:]}, not {problem['input']!r}"


def _did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """The name that is most like it, if one is: the `prefix` that all have makes none of them alike."""
    close = difflib.get_close_matches(name.removeprefix(prefix), [each.removeprefix(prefix) for each in known], n=1)
    return f" (did you mean {prefix}{close[0]}?)" if close else ""
