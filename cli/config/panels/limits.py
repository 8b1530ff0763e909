"""The limits and time limits of a server."""

from typing import Annotated

from pydantic import BaseModel
from pydantic_settings import NoDecode

from cli.config.panels.field import GATEWAY, LIMITS, setting
from gateway.settings import Routing
from protocol.bounds import MAX_FRAMES_PER_MESSAGE


class LimitSettings(BaseModel):
    """Limits of a server, and the times that it waits."""

    max_body_bytes: int = setting(
        GATEWAY.max_body_bytes, LIMITS, "Maximum bytes of one request body.", ge=1, le=24 << 20
    )
    max_total_body_bytes: int = setting(
        GATEWAY.max_total_body_bytes,
        LIMITS,
        "Maximum bytes of the bodies of all live requests, each counted n times; more requests are answered 429.",
        ge=1,
        le=1 << 50,
    )
    max_body_values: int = setting(
        GATEWAY.max_body_values,
        LIMITS,
        "Maximum JSON values in one request body; an array, an object and each of its members counts as four.",
        ge=1024,
        le=1 << 24,
    )
    max_answer_bytes: int = setting(
        GATEWAY.max_answer_bytes,
        LIMITS,
        "Maximum bytes of memory of one answer; of a streamed one, of what its client has not read yet.",
        ge=1 << 20,
        le=1 << 29,
    )
    max_total_answer_bytes: int = setting(
        GATEWAY.max_total_answer_bytes,
        LIMITS,
        "Maximum bytes of memory of all answers; beyond it the largest is ended with 429.",
        ge=1 << 20,
        le=1 << 50,
    )
    max_header_bytes: int = setting(
        GATEWAY.max_header_bytes, LIMITS, "Maximum bytes of one request's headers.", ge=1024, le=1 << 20
    )
    max_choices: int = setting(
        GATEWAY.max_choices,
        LIMITS,
        "Maximum number of sequences of one request: its prompts times n.",
        ge=1,
        le=MAX_FRAMES_PER_MESSAGE,
    )
    max_streams_per_worker: int = setting(
        GATEWAY.max_streams_per_worker,
        LIMITS,
        "Maximum number of sequences of one worker, running and waiting; more requests are answered 429.",
        ge=1,
        le=1 << 20,
    )
    max_connections: int = setting(
        GATEWAY.max_connections,
        LIMITS,
        "Maximum number of open HTTP connections; more are answered 503.",
        ge=1,
        le=1 << 20,
    )
    body_timeout_s: float = setting(
        GATEWAY.body_timeout_s, LIMITS, "Seconds in which a client must have sent its request body.", ge=0.01, le=3600
    )
    request_timeout_s: float = setting(
        GATEWAY.request_timeout_s, LIMITS, "Seconds that a request may take in total.", ge=0.01, le=604800
    )
    max_waiting_streams: int = setting(
        GATEWAY.max_waiting_streams,
        LIMITS,
        "Maximum number of sequences that wait for a worker with room; more requests are answered 429, or displace "
        "those of a key with more than its share.",
        ge=0,
        le=1 << 20,
    )
    max_queue_s: float = setting(
        GATEWAY.max_queue_s,
        LIMITS,
        "Seconds that a new request may wait for its first turn; then it is answered 503. 0: as long as it may take "
        "in total.",
        ge=0,
        le=86400,
    )
    routing: Routing = setting(
        GATEWAY.routing,
        LIMITS,
        "How a worker is chosen among those with a free slot. prefix: the one that is expected to be done first, given "
        "what its prefix cache holds of the prompt. least-loaded: the one with the fewest sequences. round-robin: each "
        "in turn.",
    )
    key_weights: Annotated[tuple[str, ...], NoDecode] = setting(
        GATEWAY.key_weights,
        LIMITS,
        "Weight of an API key, NAME=WEIGHT: its share of an overloaded server. Others have 1. Repeatable.",
        "NAME=WEIGHT",
    )
    worker_wait_s: float = setting(
        GATEWAY.worker_wait_s,
        LIMITS,
        "Seconds that a request waits for a worker to become available; 0 ends or refuses it at once.",
        ge=0,
        le=86400,
    )
    waiting_comment_s: float = setting(
        GATEWAY.waiting_comment_s,
        LIMITS,
        "Seconds between the comments that a streaming client gets while it waits for a worker.",
        ge=0.01,
        le=3600,
    )
    client_stall_s: float = setting(
        GATEWAY.client_stall_s,
        LIMITS,
        "Seconds after which a client that reads nothing is disconnected; it may take twice as long.",
        ge=0.01,
        le=86400,
    )
    max_resume_s: float = setting(
        GATEWAY.max_resume_s,
        LIMITS,
        "Maximum seconds that a stream is kept for a client whose connection ended; 0 keeps none.",
        ge=0,
        le=86400,
    )
    max_resumable_streams: int = setting(
        GATEWAY.max_resumable_streams,
        LIMITS,
        "Maximum number of streams that can be resumed; the oldest one that is not being read gives way.",
        ge=0,
        le=1 << 16,
    )
    max_resumable_streams_per_key: int = setting(
        GATEWAY.max_resumable_streams_per_key,
        LIMITS,
        "Maximum number of these streams of one API key; without keys it has no effect.",
        ge=1,
        le=1 << 16,
    )
    resume_buffer_bytes: int = setting(
        GATEWAY.resume_buffer_bytes,
        LIMITS,
        "Bytes of sent events kept for each of these streams; the oldest are dropped first.",
        ge=0,
        le=1 << 30,
    )
    max_stored_responses: int = setting(
        GATEWAY.max_stored_responses,
        LIMITS,
        "Maximum number of stored responses; of the key with the most bytes, the least recently used is dropped.",
        ge=1,
        le=1 << 20,
    )
    max_stored_bytes: int = setting(
        GATEWAY.max_stored_bytes, LIMITS, "Maximum bytes of all stored responses.", ge=1 << 16, le=1 << 40
    )
    max_background_responses: int = setting(
        GATEWAY.max_background_responses,
        LIMITS,
        "Maximum number of responses that are generated in the background; more are answered 429; 0 allows none.",
        ge=0,
        le=1 << 12,
    )
    progress_timeout_s: float = setting(
        GATEWAY.progress_timeout_s,
        LIMITS,
        "Seconds without progress after which a worker does not count as ready.",
        ge=0.01,
        le=86400,
    )
    hang_timeout_s: float = setting(
        GATEWAY.hang_timeout_s,
        LIMITS,
        "Seconds without a finished step after which a busy worker is replaced; longer if its steps are slow.",
        ge=0.01,
        le=900,
    )
    shutdown_grace_s: float = setting(
        GATEWAY.shutdown_grace_s, LIMITS, "Seconds that live requests may take to finish at shutdown.", ge=0, le=86400
    )
