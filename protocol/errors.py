"""Why a request or a peer was refused: closed sets of codes. On the wire an error is a code and a text."""

from enum import StrEnum


class ErrorCode(StrEnum):
    """Why a request ended without an answer."""

    INVALID = "invalid_request"
    """A field of the request is wrong; the text names it."""
    UNSUPPORTED = "unsupported"
    """The worker does not have this feature; the text names it."""
    CONTEXT = "context_length_exceeded"
    """Prompt and answer do not fit into the context."""
    TEMPLATE = "template_failed"
    """The chat template refused the messages or ran out of its time."""
    OVERLOADED = "overloaded"
    """The worker's queue is full."""
    DEADLINE = "deadline_exceeded"
    """The request's own deadline passed."""
    STEP = "step_failed"
    """The engine step that this request was part of failed."""
    NOT_FINITE = "not_finite"
    """The model's logits were NaN or infinite for this request and finite for others. Nothing is wrong with the
    worker."""
    LOST = "worker_lost"
    """The worker died, hung or failed while it held the request, and no other one went on with it. From a worker: it is
    about to leave because of a failure, in which the request may have had a part."""
    QUARANTINED = "quarantined"
    """Workers died with this request, and it is not tried again."""
    DRAINING = "draining"
    """The worker or the gateway leaves or admits nothing more, and the request had no part in it."""
    UNAVAILABLE = "unavailable"
    """No worker of this model is ready."""
    INTERNAL = "internal_error"
    """A bug in Baton; the text says where."""


class ByeReason(StrEnum):
    """Why a worker leaves."""

    STOPPED = "stopped"
    """It was asked to."""
    ORPHANED = "orphaned"
    """Its gateway is gone."""
    LOAD_FAILED = "load_failed"
    """The model could not be loaded or compiled; another try may do better."""
    LOAD_REFUSED = "load_refused"
    """The model can never be served here as it was asked for: another start would end just so."""
    STEPS_FAILED = "steps_failed"
    """Too many engine steps failed in a row."""
    REFUSED = "refused"
    """The gateway's `Welcome` refused it."""
    PROTOCOL = "protocol_error"
    """The gateway sent what is not a frame, or a frame out of its order."""
    INTERNAL = "internal_error"
    """A bug in the worker."""
    DIED = "died"
    """The process of a remote worker is gone; its supervisor says so, and starts another one."""
    KILLED = "killed"
    """The same, and somebody else has ended or suspended it: what it computed had no part in that."""


class ProtocolError(Exception):
    """Raised by the codec alone: the bytes are not a frame of this protocol version, or break one of its bounds."""
