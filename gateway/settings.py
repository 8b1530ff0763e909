"""The gateway's settings: its address, its bounds and its time limits."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import SplitResult, urlsplit

from actors.supervision.deadlines import Deadlines
from gateway.host_names import check_gateway, parse_origin, parse_pattern
from gateway.key_weights import parse_weights
from gateway.repository_names import check_repository
from protocol.bounds import MAX_FRAMES_PER_MESSAGE, MAX_MILLISECONDS, MAX_TOKENS
from protocol.scheduling import SchedulerPolicy

MetricsNames = Literal["baton", "vllm"]
Routing = Literal["prefix", "least-loaded", "round-robin"]
"""The choice of a worker among those with a free slot: the one that is expected to be done first, given what it holds
of the prompt; the one with the fewest sequences; or each in turn."""
MAX_NAMES = 256
"""Entries of `allowed_hosts`, of `allow_image_urls`, of `lora_dirs`, of `allow_lora_repos`, of `cors_origins`, and of
`trusted_gateways`."""


class SettingName(str):
    """The name of a setting, in the text of an error."""


class GatewaySettingsError(ValueError):
    """Raised when a setting is outside its range, or when settings contradict each other; the text names them."""

    def __init__(self, *parts: str) -> None:
        """`parts` are the text, in which each setting is a `SettingName`."""
        super().__init__("".join(parts))
        self.parts = parts

    @property
    def names(self) -> tuple[str, ...]:
        """The settings that it names, in this order."""
        return tuple(part for part in self.parts if isinstance(part, SettingName))

    def text(self, shown: Callable[[str], str]) -> str:
        """Return the text with what is `shown` of each setting in place of its name."""
        return "".join(shown(part) if isinstance(part, SettingName) else part for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """The gateway's settings; times are in seconds. Raises `GatewaySettingsError` for a value out of range."""

    host: str = "127.0.0.1"
    """Loopback by default."""
    port: int = 8000
    """0: any free port."""
    tcp: bool = True
    """Listen on `host` and `port`."""
    unix_socket: str = ""
    """The path of a Unix socket to listen on, beside the port or, without `tcp`, in its place; empty: none."""
    unix_socket_mode: str = "600"
    """The mode of its file, three octal digits."""
    api_key: str = ""
    """When set, every route but `/health` needs it, as a bearer token or as the password of HTTP basic
    authentication."""

    api_keys_file: str = ""
    """A file with further keys, their names and their limits: see `gateway.keys.key_file`."""
    admin_key: str = ""
    """When set, requests that change something under `/admin` need this key instead of `api_key`."""

    allowed_hosts: tuple[str, ...] = ()
    """Names of this server besides its own, `NAME` or `*.NAME`, or `*` for any: see `gateway.http.access.hosts`."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may use the API, or `*` for any: see `gateway.http.access.origins`."""

    allow_image_urls: tuple[str, ...] = ()
    """Hosts of the public internet from which images are fetched, `NAME` or `*.NAME`, or `*` for any: see
    `gateway.images.fetching`. None: images come in bodies alone."""

    lora_dirs: tuple[str, ...] = ()
    """Folders below which requests may load adapters at run time; none: they may load none."""
    allow_lora_repos: tuple[str, ...] = ()
    """Repositories of the hub from which requests may load adapters at run time, `ORG/NAME`, `ORG/*`, or `*` for any:
    see `gateway.repository_names`. None: they may load none."""
    lora_state_dir: str = ""
    """The folder in which adapters that were loaded at run time are kept for the next start; empty: they are forgotten.
    See `gateway.admin.adapters.adapter_state`."""

    trusted_gateways: tuple[str, ...] = ()
    """Addresses or networks of gateways in front whose headers are trusted, or `unix` for the Unix socket: see
    `gateway.http.access.gateways`."""

    gateways: int = 1
    """Processes that serve HTTP. With 1 it is this one; otherwise they are its fronts (`gateway.fronts`)."""

    tls_cert: str = ""
    """A PEM file with the server's certificate and those between it and its root; with `tls_key` the port speaks
    HTTPS."""
    tls_key: str = ""
    """A PEM file with the certificate's private key."""

    redis_url: str = ""
    """The URL of the Redis through which gateways share the limits of API keys; empty: they share nothing."""

    listen_workers: str = ""
    """The address at which workers of other machines join, `tcp://HOST:PORT`; empty: none."""
    keys_dir: str = ""
    """The folder of the gateway's key and of the keys that may join: see `actors.transport.keys` and
    `actors.transport.allow_list`."""
    allow_public_workers: bool = False
    """`listen_workers` may be a public address."""

    max_body_bytes: int = 18 * 1024 * 1024
    """Bytes of one body: images of 12 MiB are 16 MiB in base64."""
    max_total_body_bytes: int = 256 * 1024 * 1024
    """Bytes of all bodies, both arriving and of live requests (`n` times), before further ones are refused with 429."""
    max_body_values: int = 512 * 1024
    """JSON values in one body; an array, an object and each of its members counts as four."""
    max_answer_bytes: int = 128 * 1024 * 1024
    """Memory of one answer: of a whole one to its end, of a streamed one as far as its client has not taken it."""
    max_total_answer_bytes: int = 512 * 1024 * 1024
    """Memory of all answers, before the largest of them is ended with 429."""
    max_header_bytes: int = 32 * 1024
    max_choices: int = 64
    """Sequences that one request may start: its prompts times `n`."""
    max_fanout_bytes: int = 16 * 1024 * 1024
    """Bytes of the body times sequences of one request. They are one message on a link, which is 64 MiB at most."""
    max_streams_per_worker: int = 2048
    """Sequences that one worker may hold, running and waiting, before further ones are refused with 429."""
    max_waiting_streams: int = 256
    """Sequences that may wait for room on a worker, or for a first worker while there is none, before further ones are
    refused with 429, or displace those of a client with more than its share."""
    scheduler_policy: SchedulerPolicy = "fifo"
    """The order in which the waiting requests of one client get their turns."""
    routing: Routing = "prefix"
    """The choice of the worker of a sequence."""
    long_prompt_tokens: int = 0
    """Prompt tokens to be computed from which a sequence goes to a prefill worker, if there are any; 0: as many as take
    half a second, as measured."""
    key_weights: tuple[str, ...] = ()
    """Weights of API keys, `NAME=WEIGHT`: a client gets its share of the workers, and of the places in the queue, by
    the weight of its key, which is 1 unless it is given here."""

    max_connections: int = 8192
    """Open HTTP connections, before further ones are refused with 503."""

    body_timeout_s: float = 30.0
    """Time for a client to send its body."""
    request_timeout_s: float = 3600.0
    """Time for a sequence to end, its wait in the queue included."""
    worker_wait_s: float = 60.0
    """Time that a sequence waits for a worker of its model while there is none, whether it lost its worker or is new.
    0: it does not wait."""
    max_queue_s: float = 0.0
    """Time that a new request may wait for its first turn, before it ends with `queue_timeout`; 0: as long as it may
    take in all."""
    waiting_comment_s: float = 5.0
    """Interval of the comments that a streaming client gets while its request waits for a worker."""
    client_stall_s: float = 30.0
    """A client that reads nothing for this long is disconnected."""
    max_resume_s: float = 600.0
    """The longest time that a stream may be kept after its connection has ended; 0: none is kept."""
    max_resumable_streams: int = 512
    """Resumable streams, read or not, before the oldest one that is not read gives way; 0: none."""
    max_resumable_streams_per_key: int = 256
    """Those of one API key. Without keys only `max_resumable_streams` holds: an address is no client."""
    resume_buffer_bytes: int = 512 * 1024
    """Bytes of sent events that one stream keeps; the oldest are dropped first."""
    store: str = "memory"
    """The store of responses: `memory`, `sqlite:FILE` or `none`."""
    max_stored_responses: int = 4096
    """Responses that are kept, before the one is dropped that was not used for the longest time, of the API key with
    the most bytes."""
    max_stored_bytes: int = 128 * 1024 * 1024
    """Bytes of all responses that are kept, with their input."""
    max_background_responses: int = 64
    """Responses generated in the background, before further ones are refused with 429; 0: none."""
    metrics_names: MetricsNames = "baton"
    """`vllm`: /metrics has the series under vLLM's names, too."""
    otlp_traces_endpoint: str = ""
    """The URL to which traces are exported by OTLP over HTTP; empty: none are made."""
    progress_timeout_s: float = 30.0
    """A worker without progress for this long does not count as ready."""
    hang_timeout_s: float = 10.0
    """A worker that has work and finishes no step for this long is restarted, unless its steps take that long."""
    keep_alive_s: float = 75.0
    shutdown_grace_s: float = 30.0
    """Time for live streams to finish at a shutdown."""
    flush_s: float = 2.0
    """Time for clients to read their last bytes at a shutdown."""
    retry_after_s: int = 1

    @property
    def store_path(self) -> str:
        """The file in which responses are kept; empty without one."""
        return self.store.removeprefix("sqlite:") if self.store.startswith("sqlite:") else ""

    @property
    def resume_most_s(self) -> float:
        """The longest time that a stream may be kept; 0 when none is."""
        return self.max_resume_s if self.max_resumable_streams else 0.0

    def __post_init__(self) -> None:
        bounds: dict[str, tuple[float, float]] = {
            "port": (0, 65535),
            "gateways": (1, 64),
            "max_body_bytes": (1, 24 * 1024 * 1024),
            "max_total_body_bytes": (1, 1 << 50),
            "max_body_values": (1024, 1 << 24),
            "max_answer_bytes": (1 << 20, 1 << 29),
            "max_total_answer_bytes": (1 << 20, 1 << 50),
            "max_header_bytes": (1024, 1 << 20),
            "max_choices": (1, MAX_FRAMES_PER_MESSAGE),
            "max_fanout_bytes": (1, 60 * 1024 * 1024),
            "max_streams_per_worker": (1, 1 << 20),
            "max_waiting_streams": (0, 1 << 20),
            "long_prompt_tokens": (0, MAX_TOKENS),
            "max_connections": (1, 1 << 20),
            "body_timeout_s": (0.01, 3600),
            "request_timeout_s": (0.01, MAX_MILLISECONDS / 1000),
            "worker_wait_s": (0, 86400),
            "max_queue_s": (0, 86400),
            "waiting_comment_s": (0.01, 3600),
            "client_stall_s": (0.01, 86400),
            "max_resume_s": (0, 86400),
            "max_resumable_streams": (0, 1 << 16),
            "max_resumable_streams_per_key": (1, 1 << 16),
            "resume_buffer_bytes": (0, 1 << 30),
            "max_stored_responses": (1, 1 << 20),
            "max_stored_bytes": (1 << 16, 1 << 40),
            "max_background_responses": (0, 1 << 12),
            "progress_timeout_s": (0.01, 86400),
            "hang_timeout_s": (0.01, Deadlines().hang_most),
            "keep_alive_s": (0.01, 86400),
            "shutdown_grace_s": (0, 86400),
            "flush_s": (0, 3600),
            "retry_after_s": (1, 86400),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if not low <= value <= high:
                text = f" is {value}; it must be between {low:g} and {high:g}"
                raise GatewaySettingsError(SettingName(name), text)
        for name, most, effect in (
            ("max_choices", "max_streams_per_worker", "no worker could take such a request"),
            ("max_body_bytes", "max_total_body_bytes", "no such body could be taken"),
            ("max_answer_bytes", "max_total_answer_bytes", "no such answer could be kept"),
        ):
            value, bound = getattr(self, name), getattr(self, most)
            if value > bound:
                values = f", {value} over {bound}: {effect}"
                raise GatewaySettingsError(SettingName(name), " is over ", SettingName(most), values)
        self._check_listening()
        self._check_names("allowed_hosts", self.allowed_hosts, parse_pattern)
        self._check_names("allow_image_urls", self.allow_image_urls, parse_pattern)
        self._check_names("lora_dirs", self.lora_dirs, _check_folder)
        self._check_names("allow_lora_repos", self.allow_lora_repos, check_repository)
        if self.lora_state_dir:
            self._check_names("lora_state_dir", (self.lora_state_dir,), _check_folder)
            if not self.lora_dirs and not self.allow_lora_repos:
                needed = (SettingName("lora_dirs"), " or ", SettingName("allow_lora_repos"))
                problem = ": otherwise nothing is loaded that could be kept"
                raise GatewaySettingsError(SettingName("lora_state_dir"), " needs ", *needed, problem)
        self._check_names("cors_origins", self.cors_origins, parse_origin)
        self._check_names("trusted_gateways", self.trusted_gateways, check_gateway)
        self._check_choices()
        if self.otlp_traces_endpoint:
            url = _split(self.otlp_traces_endpoint)
            if url is None or url.scheme not in ("http", "https") or not url.hostname:
                raise _not_one_of(
                    "otlp_traces_endpoint", self.otlp_traces_endpoint, "a URL such as http://localhost:4318/v1/traces"
                )
        redis = _split(self.redis_url)
        if self.redis_url and (redis is None or redis.scheme not in ("redis", "rediss", "unix")):
            text = " must be redis://HOST:PORT, rediss://HOST:PORT or unix://PATH"
            raise GatewaySettingsError(SettingName("redis_url"), text)
        try:
            parse_weights(self.key_weights)
        except ValueError as error:
            raise GatewaySettingsError(SettingName("key_weights"), f": {error}") from error

    def _check_listening(self) -> None:
        tcp, unix_socket = SettingName("tcp"), SettingName("unix_socket")
        if not self.host:
            raise GatewaySettingsError(SettingName("host"), " is empty")
        if self.listen_workers and not self.keys_dir:
            advice = ", with keys from `baton worker-keys init --keys-dir DIR`"
            raise GatewaySettingsError(SettingName("listen_workers"), " needs ", SettingName("keys_dir"), advice)
        if not self.tcp and not self.unix_socket:
            effect = " is empty: there would be nothing to listen on"
            raise GatewaySettingsError(tcp, " is off and ", unix_socket, effect)
        if not self.tcp and self.tls_cert:
            only = " is for the TCP port, which is off by "
            raise GatewaySettingsError(SettingName("tls_cert"), only, tcp, ": leave one of them out")
        if not re.fullmatch("[0-7]{3}", self.unix_socket_mode):
            raise _not_one_of("unix_socket_mode", self.unix_socket_mode, "three octal digits, such as 660")
        if bool(self.tls_cert) != bool(self.tls_key):
            given, missing = ("tls_cert", "tls_key") if self.tls_cert else ("tls_key", "tls_cert")
            raise GatewaySettingsError(SettingName(given), " needs ", SettingName(missing), ": they go together")

    def _check_choices(self) -> None:
        if self.store not in ("memory", "none") and not self.store_path:
            raise _not_one_of("store", self.store, "memory, none or sqlite:FILE")
        if self.metrics_names not in get_args(MetricsNames):
            raise _not_one_of("metrics_names", self.metrics_names, "baton or vllm")
        if self.scheduler_policy not in get_args(SchedulerPolicy):
            allowed = f"one of {', '.join(get_args(SchedulerPolicy))}"
            raise _not_one_of("scheduler_policy", self.scheduler_policy, allowed)
        if self.routing not in get_args(Routing):
            raise _not_one_of("routing", self.routing, f"one of {', '.join(get_args(Routing))}")

    @staticmethod
    def _check_names(setting: str, names: tuple[str, ...], parse: Callable[[str], object]) -> None:
        if len(names) > MAX_NAMES:
            text = f" has {len(names)} entries; {MAX_NAMES} is the most"
            raise GatewaySettingsError(SettingName(setting), text)
        for name in names:
            try:
                parse(name)
            except ValueError as error:
                raise GatewaySettingsError(SettingName(setting), f": {error}") from error


def _not_one_of(setting: str, value: str, allowed: str) -> GatewaySettingsError:
    return GatewaySettingsError(SettingName(setting), f" is {value[:200]!r}; it must be {allowed}")


def _check_folder(path: str) -> None:
    if not path or "\0" in path:
        raise ValueError(f"{path!r} is no folder")


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:
        return None
