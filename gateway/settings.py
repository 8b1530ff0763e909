"""What can be set about the gateway: where it listens, its bounds and its time limits."""

from dataclasses import dataclass

from actors.supervision.deadlines import Deadlines
from protocol.bounds import MAX_FRAMES_PER_MESSAGE, MAX_MILLISECONDS


class SettingsError(ValueError):
    """Raised when a setting is outside its range; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """The gateway's settings; times are in seconds. Raises `SettingsError` for a value out of range."""

    host: str = "127.0.0.1"
    """Loopback alone unless someone asks for more."""
    port: int = 8000
    """0 takes a free port."""
    api_key: str = ""
    """When set, every route but `/health` wants it as a bearer token (or as the password of HTTP basic)."""

    admin_key: str = ""
    """When set, what changes something under `/admin` wants this key, and not `api_key`."""

    listen_workers: str = ""
    """Where workers of other machines join, `tcp://HOST:PORT`; empty is nowhere."""
    keys_dir: str = ""
    """The folder of the gateway's key and of the keys that may join: see `actors.transport.keys` and
    `actors.transport.allow_list`."""
    allow_public_workers: bool = False
    """`listen_workers` may be an address that strangers can reach."""

    max_body_bytes: int = 8 * 1024 * 1024
    max_total_body_bytes: int = 256 * 1024 * 1024
    """Bytes of all bodies, those that arrive and those of live requests (`n` times), before clients are told to come
    back."""
    max_header_bytes: int = 32 * 1024
    max_choices: int = 64
    """Sequences that one request may start: its prompts times `n`."""
    max_fanout_bytes: int = 32 * 1024 * 1024
    """Body bytes times sequences of one request: what its fan-out may put on a link, whose messages end at 64 MiB."""
    max_streams_per_worker: int = 2048
    """Sequences that one worker may hold, running and waiting, before its clients are told to come back."""
    max_waiting_streams: int = 256
    """Sequences that may wait for a first worker while there is none, before their clients are told to come back."""

    max_connections: int = 8192
    """HTTP connections that may be open, before further ones are answered 503 and closed."""

    body_timeout_s: float = 30.0
    """Time in which a client must have sent its body."""
    request_timeout_s: float = 3600.0
    """Time in which a sequence must have ended, its wait in the queue included."""
    worker_wait_s: float = 60.0
    """Time that a sequence waits for a worker of its model when there is none: because its own was lost, or because it
    came meanwhile. 0 ends and refuses those at once."""
    waiting_comment_s: float = 5.0
    """A streaming client whose request waits for a worker is sent a comment this often."""
    client_stall_s: float = 30.0
    """A client that takes nothing for this long is dropped."""
    max_resume_s: float = 600.0
    """Time that a client may ask its stream to be kept after the connection ended; 0 keeps none."""
    max_resumable_streams: int = 512
    """Streams that can be resumed, read or not, before clients that ask for one more are sent away; 0 keeps none."""
    resume_buffer_bytes: int = 512 * 1024
    """Bytes of sent events that one stream keeps; the oldest go first."""
    progress_timeout_s: float = 30.0
    """A worker that showed no progress for this long does not count as ready."""
    hang_timeout_s: float = 10.0
    """A worker that holds work and finished no step for this long is ended, unless its steps take that long."""
    keep_alive_s: float = 75.0
    shutdown_grace_s: float = 30.0
    """Time that live streams get to finish at a shutdown."""
    flush_s: float = 2.0
    """Time in which clients must take their last bytes at a shutdown."""
    retry_after_s: int = 1

    @property
    def resume_most_s(self) -> float:
        """How long a stream may be kept for its client; 0 when none is."""
        return self.max_resume_s if self.max_resumable_streams else 0.0

    def __post_init__(self) -> None:
        bounds: dict[str, tuple[float, float]] = {
            "port": (0, 65535),
            "max_body_bytes": (1, 12 * 1024 * 1024),
            "max_total_body_bytes": (1, 1 << 50),
            "max_header_bytes": (1024, 1 << 20),
            "max_choices": (1, MAX_FRAMES_PER_MESSAGE),
            "max_fanout_bytes": (1, 60 * 1024 * 1024),
            "max_streams_per_worker": (1, 1 << 20),
            "max_waiting_streams": (0, 1 << 20),
            "max_connections": (1, 1 << 20),
            "body_timeout_s": (0.01, 3600),
            "request_timeout_s": (0.01, MAX_MILLISECONDS / 1000),
            "worker_wait_s": (0, 86400),
            "waiting_comment_s": (0.01, 3600),
            "client_stall_s": (0.01, 86400),
            "max_resume_s": (0, 86400),
            "max_resumable_streams": (0, 1 << 16),
            "resume_buffer_bytes": (0, 1 << 30),
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
                raise SettingsError(f"{name} is {value}; it must be between {low:g} and {high:g}")
        if self.max_choices > self.max_streams_per_worker:
            raise SettingsError("max_choices is over max_streams_per_worker: no worker could take such a request")
        if self.max_body_bytes > self.max_total_body_bytes:
            raise SettingsError("max_body_bytes is over max_total_body_bytes: no such body could be taken")
        if self.listen_workers and not self.keys_dir:
            raise SettingsError("listen_workers needs keys_dir: without keys nobody may join over a network")
        if not self.host:
            raise SettingsError("host is empty")
