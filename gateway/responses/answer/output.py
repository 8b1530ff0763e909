"""The output of one answer: the items that its deltas make, in order."""

from collections.abc import Sequence

from gateway.generation.delta import OutputDelta, ReasoningDelta, StopReason, TextDelta, ToolCallDelta
from gateway.responses.answer.output_items import FunctionCallItem, MessageItem, Named, OutputItem, ReasoningItem


class Output:
    """Collects the deltas of one answer as items. Its methods return the events that the deltas cause."""

    def __init__(self, response: str, *, encrypted: bool) -> None:
        """`encrypted`: reasoning has its `encrypted_content`."""
        self._response = response
        self._encrypted = encrypted
        self._items: list[OutputItem] = []
        self._open: OutputItem | None = None
        self.stop: StopReason | None = None
        """Why the answer stopped; None before its last delta."""
        self.reasoning_tokens = 0
        """Tokens of the reasoning, as far as deltas have their tokens."""

    def add(self, deltas: Sequence[OutputDelta]) -> list[Named]:
        """Collect deltas."""
        events: list[Named] = []
        for delta in deltas:
            self.stop = delta.stop or self.stop
            if isinstance(delta, ReasoningDelta):
                self.reasoning_tokens += len(delta.tokens)
            if self._open is None or not self._open.takes(delta):
                if isinstance(delta, TextDelta | ReasoningDelta) and not delta.text and not delta.logprobs:
                    continue  # the end, or a token that has added no text yet
                events += self._begin(delta)
            if self._open is not None:
                events += self._open.add(delta)
        return events

    def end(self) -> list[Named]:
        """End the answer. One without any output has an empty message."""
        events: list[Named] = []
        if not self._items:
            events += self._begin(TextDelta(0, ""))
        return events + self._end_item("incomplete" if self.stop is StopReason.LENGTH else "completed")

    def fail(self) -> None:
        """End an answer that failed. The item that is open has no events at its end."""
        self._end_item("incomplete")

    def written(self) -> list[bytes]:
        """The ended items as JSON."""
        return [item.done for item in self._items if item.done]

    def _begin(self, delta: OutputDelta) -> list[Named]:
        events = self._end_item("completed")
        self._open = self._make(delta)
        self._items.append(self._open)
        return events + self._open.begin()

    def _end_item(self, status: str) -> list[Named]:
        item, self._open = self._open, None
        return [] if item is None else item.end(status)

    def _make(self, delta: OutputDelta) -> OutputItem:
        index = len(self._items)
        if isinstance(delta, ToolCallDelta):
            return FunctionCallItem(self._response, index, delta)
        if isinstance(delta, ReasoningDelta):
            return ReasoningItem(self._response, index, self._encrypted)
        return MessageItem(self._response, index)
