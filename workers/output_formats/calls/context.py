"""Context of the parsers of calls: the characters, the tools, and the sink of what they read."""

from dataclasses import dataclass
from typing import Protocol

from protocol.bounds import MAX_NAME
from workers.output_formats.calls.characters import Characters, Malformed, Reason
from workers.output_formats.calls.tool_schemas import ToolSchemas

MAX_HEADER = 512
"""Characters of a name or a key with what surrounds it."""


class CallSink(Protocol):
    """Receives calls while they are read."""

    def begin(self, name: str) -> None:
        """A call begins. From here on it is a call, and nothing of it is text."""

    def arguments(self, text: str) -> None:
        """The JSON of the arguments continues."""

    def end(self) -> None:
        """The call is complete."""

    def skip(self) -> None:
        """Keep what was read so far from becoming text, whatever follows."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """Context of the parsers of one answer."""

    chars: Characters
    sink: CallSink
    tools: ToolSchemas
    known_only: bool = False
    """Only the name of a tool makes a call."""

    def begin(self, name: str) -> str:
        """Begin a call, and return its name. Raises `Malformed` for a name that no call can have."""
        name = name.strip()
        if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
            raise Malformed(Reason.NAME)
        if self.known_only and name not in self.tools.names:
            raise Malformed(Reason.UNKNOWN_TOOL)
        self.sink.begin(name)
        return name
