"""Error codes of requests and reasons to exit of workers: closed sets. On the wire an error is a code and a text."""

from enum import StrEnum


class ErrorCode(StrEnum):
    """Reasons why a request failed."""

    INVALID = "invalid_request"
    """A field of the request is invalid; the text names it."""
    UNSUPPORTED = "unsupported"
    """The worker does not have this feature; the text names it."""
    CONTEXT = "context_length_exceeded"
    """Prompt and answer do not fit into the context."""
    TEMPLATE = "template_failed"
    """The chat template refused the messages or exceeded its time limit."""
    OVERLOADED = "overloaded"
    """The worker's queue is full."""
    DEADLINE = "deadline_exceeded"
    """The deadline of the request passed."""
    QUEUE_TIMEOUT = "queue_timeout"
    """The request waited for its first turn as long as it may wait, in the gateway and in a worker together."""
    STEP = "step_failed"
    """An engine step with this request failed."""
    NOT_FINITE = "not_finite"
    """The model's logits were NaN or infinite for this request and finite for others. Nothing is wrong with the
    worker."""
    LOST = "worker_lost"
    """The worker died, hung or failed while it had the request, and no other worker resumed it. From a worker: it exits
    because of a failure that the request may have caused."""
    QUARANTINED = "quarantined"
    """Workers died while they had this request, so it is not tried again."""
    DRAINING = "draining"
    """The worker or the gateway exits or admits no more requests, for a reason not attributed to this request."""
    UNAVAILABLE = "unavailable"
    """No worker of this model is ready."""
    INTERNAL = "internal_error"
    """A bug in Baton; the text says where."""


class ByeReason(StrEnum):
    """Reasons why a worker exits."""

    STOPPED = "stopped"
    """It received `Stop`, `Drain` or SIGTERM."""
    ORPHANED = "orphaned"
    """Its gateway is gone."""
    LOAD_FAILED = "load_failed"
    """The model could not be loaded or compiled; another attempt may succeed."""
    LOAD_REFUSED = "load_refused"
    """The model cannot be served here with these settings; another attempt would fail in the same way."""
    STEPS_FAILED = "steps_failed"
    """Too many consecutive engine steps failed."""
    REFUSED = "refused"
    """The gateway refused it in `Welcome`."""
    PROTOCOL = "protocol_error"
    """The gateway sent an invalid frame, or a frame out of order."""
    INTERNAL = "internal_error"
    """A bug in the worker."""
    DIED = "died"
    """The process of a remote worker died. Its supervisor reports this, and restarts it."""
    KILLED = "killed"
    """As `DIED`, but ended or suspended from outside, so its requests are not the cause."""


class ProtocolError(Exception):
    """Raised by the codec: the bytes are not a frame of this protocol version, or exceed a bound. Peers also raise it
    for a valid frame that is out of order."""
