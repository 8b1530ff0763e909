"""Server-sent events: what all dialects that stream them have in common."""

CONTENT_TYPE = b"text/event-stream; charset=utf-8"
WAITING = b": waiting\n\n"
"""A comment, which clients skip: the request waits for a worker."""
END = b"\n\n"
"""The end of an event; none has an empty line within, as JSON escapes its line ends."""


def is_sse(content_type: bytes) -> bool:
    """The content type is that of server-sent events."""
    return content_type.partition(b";")[0].strip().lower() == b"text/event-stream"


class EventIds:
    """Gives each event of a stream its id, such as `id: chatcmpl-0123456789abcdef01234567-17`; numbers start at 1."""

    __slots__ = ("_number", "_prefix")

    def __init__(self, stream_id: str) -> None:
        self._prefix = f"id: {stream_id}-".encode()
        self._number = 0

    def number(self, events: list[bytes]) -> list[bytes]:
        """The next events, each with its id as its first line."""
        first = self._number + 1
        self._number += len(events)
        if len(events) == 1:  # as it mostly is
            return [b"%s%d\n%s" % (self._prefix, first, events[0])]
        return [b"%s%d\n%s" % (self._prefix, number, event) for number, event in enumerate(events, first)]
