"""Server-sent events: what all dialects that stream them have in common."""

CONTENT_TYPE = b"text/event-stream; charset=utf-8"
WAITING = b": waiting\n"
"""A comment, which clients skip: the request waits for a worker. No empty line follows it, which OpenAI's client 3.54
takes for an event without data once an event had an id."""
END = b"\n\n"
"""The end of an event; none has an empty line within, as JSON escapes its line ends."""


def is_sse(content_type: bytes) -> bool:
    """The content type is that of server-sent events."""
    return content_type.partition(b";")[0].strip().lower() == b"text/event-stream"
