"""Collects the output of a parser: adjacent parts of one kind become one segment."""

from dataclasses import dataclass, field

from protocol.events import ReasoningSegment, Segment, TextSegment, ToolCallSegment


@dataclass(slots=True)
class _Run:
    kind: type[Segment]
    call: int = 0
    name: str = ""
    parts: list[str] = field(default_factory=list)

    def segment(self) -> Segment:
        text = "".join(self.parts)
        if self.kind is ToolCallSegment:
            return ToolCallSegment(self.call, self.name, text)
        return ReasoningSegment(text) if self.kind is ReasoningSegment else TextSegment(text)


class SegmentList:
    """Owns the segments that were not taken yet."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def text(self, text: str) -> None:
        """Add text of the answer."""
        self._add(TextSegment, text)

    def reasoning(self, text: str) -> None:
        """Add reasoning."""
        self._add(ReasoningSegment, text)

    def begin_call(self, call: int, name: str) -> None:
        """Add the beginning of a call."""
        self._runs.append(_Run(ToolCallSegment, call, name))

    def arguments(self, call: int, text: str) -> None:
        """Add arguments of a call."""
        self._add(ToolCallSegment, text, call)

    def take(self) -> list[Segment]:
        """Return the segments, which are not kept."""
        if not self._runs:
            return []
        segments = [run.segment() for run in self._runs]
        self._runs.clear()
        return segments

    def _add(self, kind: type[Segment], text: str, call: int = 0) -> None:
        if not self._runs or self._runs[-1].kind is not kind or self._runs[-1].call != call:
            self._runs.append(_Run(kind, call))
        self._runs[-1].parts.append(text)
