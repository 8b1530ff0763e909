"""An incremental parser of server-sent events."""

from collections.abc import Iterator
from dataclasses import dataclass

DONE = b"[DONE]"
"""The data of the last event of an OpenAI-compatible stream."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `id` is empty if the event has none."""

    id: str
    data: bytes


class EventParser:
    """Parses one stream of events (HTML standard, section 9.2.6) from parts of any size.

    Lines end in LF or CRLF; Unicode's other line separators belong to the text. An event is complete once the empty
    line after it arrived. Comments and fields other than `id` and `data` are ignored.
    """

    def __init__(self) -> None:
        self._pending = b""
        self._id = ""
        self._data: list[bytes] = []

    def feed(self, part: bytes) -> Iterator[Event]:
        """Yield the events that this part completes."""
        *lines, self._pending = (self._pending + part).split(b"\n")
        for line in lines:
            name, _, value = line.rstrip(b"\r").partition(b":")
            if name == b"id":
                self._id = value.removeprefix(b" ").decode("utf-8", "replace")
            elif name == b"data":
                self._data.append(value.removeprefix(b" "))
            elif not name and not value and self._data:
                event = Event(self._id, b"\n".join(self._data))
                self._id, self._data = "", []
                yield event
