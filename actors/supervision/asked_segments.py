"""The parsed output that a worker may send of one sequence. Pure."""

from collections.abc import Sequence

from protocol.commands import Submit
from protocol.events import ReasoningSegment, Segment, ToolCallSegment
from protocol.request import ChatInput


class AskedSegments:
    """The segments of one sequence. Calls are numbered from 0, and only the first part of a call has its name."""

    __slots__ = ("_call", "_reasoning", "_resumed", "_tools", "single")

    def __init__(self, submit: Submit) -> None:
        chat = submit.input if isinstance(submit.input, ChatInput) else None
        self._tools = chat is not None and chat.parse_tools and chat.tool_choice.mode != "none"
        self._reasoning = chat is not None and chat.parse_reasoning
        self.single = chat is not None and not chat.tool_choice.parallel
        """The answer may have one call, and ends after it."""
        self._resumed = bool(submit.resume)
        """Calls may have come from an earlier worker."""
        self._call = -1

    @property
    def may_end(self) -> bool:
        """The answer may end because of its calls."""
        return self._tools and (self._call >= 0 or self._resumed)

    def take(self, segments: Sequence[Segment]) -> int:
        """Account for segments, and return the number of their characters. Raises `ValueError` with what is wrong."""
        if not (self._tools or self._reasoning):
            raise ValueError("got segments that were not asked for")
        characters = 0
        for segment in segments:
            if isinstance(segment, ToolCallSegment):
                self._take_call(segment)
                characters += len(segment.name) + len(segment.arguments)
            elif isinstance(segment, ReasoningSegment) and not self._reasoning:
                raise ValueError("got reasoning that was not asked for")
            else:
                characters += len(segment.text)
        return characters

    def _take_call(self, segment: ToolCallSegment) -> None:
        if not self._tools:
            raise ValueError("got a tool call that was not asked for")
        if self._call < 0 and self._resumed:
            self._call = segment.call - bool(segment.name)  # the calls before it came from an earlier worker
        expected = self._call + bool(segment.name)
        if segment.call != expected or expected < 0:
            raise ValueError(f"got a part of call {segment.call} after call {self._call}")
        if self.single and segment.call:
            raise ValueError("got a second tool call, and one was asked for")
        self._call = expected
