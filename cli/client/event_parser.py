"""Server-sent events out of the bytes of a connection, however they were cut on their way."""

from collections.abc import Iterator
from dataclasses import dataclass

DONE = b"[DONE]"
"""The data of an answer's last event."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event; `id` is empty for one without."""

    id: str
    data: bytes


class EventParser:
    """One stream of events (HTML standard, 9.2.6) whose lines end in LF or CRLF: what a text has of Unicode's other
    line ends is its own. An event counts as soon as the empty line after it has come; comments have no data and are
    left out, and so is every field but `id` and `data`."""

    def __init__(self) -> None:
        self._pending = b""
        self._id = ""
        self._data: list[bytes] = []

    def feed(self, part: bytes) -> Iterator[Event]:
        """The events that end with this part, each as it is asked for."""
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
