"""Checks the description that a worker gives of itself, before it is shown, logged and used as a label. Pure."""

from protocol.bounds import MAX_TOKEN_ID
from protocol.events import Hello

_LABELS = (
    *("worker", "model", "backend", "device", "config_digest", "model_digest", "context_bound", "slots_bound"),
    *("draft_model", "adapter"),
)


def implausible(hello: Hello) -> str | None:
    """Return what is wrong with a `Hello`; None for a plausible one. A context of 0 is unknown."""
    for name in _LABELS:
        if not getattr(hello, name).isprintable():
            return f"{name} has control characters"
    if hello.slots < 1:
        return "a worker has at least one slot"
    for context in (hello.context, hello.model_context):
        if context > MAX_TOKEN_ID:
            return f"a context of {context} tokens is over {MAX_TOKEN_ID}"
    return None
